"""What happens to a client's update on its way to the server."""
