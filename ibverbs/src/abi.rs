//! Layouts and numbers of the C ABI of libibverbs.
