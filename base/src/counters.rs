//! Named event counters.

/// Defines a struct of `u64` counters that can be listed by name.
///
/// Each field needs a doc comment, which is also its help text for metrics. Counting is
/// `self.counters.name += 1` by the one thread that owns the struct.
///
/// ```
/// heddle_base::counters! {
///     /// What a port did.
///     pub struct PortCounters {
///         /// Frames received.
///         rx_frames,
///     }
/// }
/// let mut c = PortCounters::default();
/// c.rx_frames += 1;
/// let mut seen = Vec::new();
/// c.for_each(|name, help, value| seen.push((name, help.trim(), value)));
/// assert_eq!(seen, [("rx_frames", "Frames received.", 1)]);
/// ```
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[doc = $help:expr])+ $field:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $name { $($(#[doc = $help])+ pub $field: u64,)+ }

        impl $name {
            /// All counters are 0.
            pub const ZERO: $name = $name { $($field: 0,)+ };

            /// Calls `f` with name, help text and value of every counter.
            pub fn for_each(&self, mut f: impl FnMut(&'static str, &'static str, u64)) {
                $(f(stringify!($field), concat!($($help),+), self.$field);)+
            }

            /// Adds every counter of `other` to the counter of the same name in `self`.
            pub fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)+
            }
        }
    };
}
