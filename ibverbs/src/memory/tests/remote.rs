//! From the program's memory to the workers of another process, and back.
