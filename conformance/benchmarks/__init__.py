"""What a replayed metadata build costs beside the eager one."""
