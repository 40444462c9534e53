//! The identity of a thread, as a number that can be stored.

/// Returns a number that differs from those of all other live threads, and is never 0.
pub(crate) fn here() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    // Each thread has a byte of its own, and the address of that byte is the number.
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

#[cfg(test)]
mod tests {
    use super::here;

    #[test]
    fn test_each_thread_has_a_number_of_its_own() {
        assert_ne!(here(), 0);
        assert_eq!(here(), here());
        let other = std::thread::spawn(here).join().unwrap();
        assert_ne!(here(), other);
    }
}
