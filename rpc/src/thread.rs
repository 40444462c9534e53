//! Which thread this is, as a number that can be stored.

/// Tells this thread from all others that live. It is never 0.
pub(crate) fn here() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    // Each thread has an octet of its own, and where that is, is its number.
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

#[cfg(test)]
mod tests {
    use super::here;

    #[test]
    fn test_threads_have_numbers_of_their_own() {
        assert_ne!(here(), 0);
        assert_eq!(here(), here());
        let other = std::thread::spawn(here).join().unwrap();
        assert_ne!(here(), other);
    }
}
