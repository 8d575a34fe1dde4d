"""Reading, checking and making data sets."""
