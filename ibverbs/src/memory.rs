//! Memory that the program has already, made shared with the RNIC in place.
