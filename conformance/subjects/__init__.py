"""What the suite is run on."""
