"""Pushing groups to disk: `pusher` writes them in the background, `relief` decides when."""
