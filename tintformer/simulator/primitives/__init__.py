"""The only parts of the simulator that compute: every other module moves data between them."""
