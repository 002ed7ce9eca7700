"""The command line: one thin file a command; the work is in the packages they call."""
