"""What runs a worker: threads, gRPC and files around it, or nothing but memory."""
