"""What people's programs ask of a manager: the verbs once (`service`), gRPC and REST as faces."""
