//! The exported functions of libibverbs, and the objects behind their pointers.
