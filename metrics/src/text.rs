//! Prometheus's text format, version 0.0.4.

use core::fmt::{Display, Write};

use heddle_base::Histogram;

/// The kind of a family of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The value only grows, until a restart.
    Counter,
    /// The value goes up and down.
    Gauge,
    /// The values form a distribution.
    Histogram,
}

/// Names and values that distinguish the lines of a family.
pub(crate) type Labels<'a> = [(&'a str, &'a str)];

/// The text under construction. All lines of a family stand together: [`family`](Text::family)
/// first, then its values.
#[derive(Debug, Default)]
pub(crate) struct Text {
    out: String,
    name: String,
}

impl Text {
    /// Begins a family. A name has only letters, digits and `_`.
    pub(crate) fn family(&mut self, name: &str, kind: Kind, help: &str) {
        name.clone_into(&mut self.name);
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a string does not fail, here and below.
        let _ = write!(self.out, "# HELP {name} ");
        // A help text ends with its line; in the source, help texts of counters are comments of
        // several lines.
        let mut words = help.split_whitespace();
        if let Some(first) = words.next() {
            escape(&mut self.out, first, false);
        }
        for word in words {
            self.out.push(' ');
            escape(&mut self.out, word, false);
        }
        let _ = writeln!(self.out, "\n# TYPE {name} {kind}");
    }

    /// Writes a value of the family begun last.
    pub(crate) fn value(&mut self, labels: &Labels<'_>, value: impl Display) {
        self.line("", labels, None, value);
    }

    /// Writes a distribution of the family begun last, converted from nanoseconds to seconds.
    pub(crate) fn histogram(&mut self, labels: &Labels<'_>, h: &Histogram) {
        let mut below = 0u64;
        for (bound, count) in h.buckets() {
            below = below.saturating_add(count);
            match bound {
                Some(ns) => self.line("_bucket", labels, Some(&seconds(ns)), below),
                None => self.line("_bucket", labels, Some("+Inf"), below),
            }
        }
        self.line("_sum", labels, None, seconds(h.sum()));
        self.line("_count", labels, None, below);
    }

    fn line(&mut self, suffix: &str, labels: &Labels<'_>, le: Option<&str>, value: impl Display) {
        self.out.push_str(&self.name);
        self.out.push_str(suffix);
        let le = le.map(|le| ("le", le));
        let mut before = '{';
        for (name, value) in labels.iter().copied().chain(le) {
            let _ = write!(self.out, "{before}{name}=\"");
            escape(&mut self.out, value, true);
            self.out.push('"');
            before = ',';
        }
        if before == ',' {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
    }

    pub(crate) fn finish(self) -> String {
        self.out
    }
}

/// Returns nanoseconds as seconds, to the last digit: a float would round the sums of a year
/// without restart.
pub(crate) fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Escapes backslash and line feed, and within quotes also the quote: each would end the text
/// around it.
fn escape(out: &mut String, text: &str, quoted: bool) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quoted => out.push_str("\\\""),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_text_renders_values_with_and_without_labels() {
        let mut t = Text::default();
        t.family("a_total", Kind::Counter, " What it\n counts. ");
        t.value(&[], 1);
        t.value(&[("x", "1"), ("y", "q\"\\\n")], 2);
        assert_eq!(
            t.finish(),
            "# HELP a_total What it counts.\n# TYPE a_total counter\na_total 1\n\
             a_total{x=\"1\",y=\"q\\\"\\\\\\n\"} 2\n"
        );
    }

    #[test]
    fn test_seconds_are_exact() {
        for (ns, text) in [
            (0, "0"),
            (1, "0.000000001"),
            (256, "0.000000256"),
            (1_500_000_000, "1.5"),
            (10_000_000_000, "10"),
            (u64::MAX, "18446744073.709551615"),
        ] {
            assert_eq!(seconds(ns), text);
        }
    }

    #[test]
    fn test_histogram_buckets_are_cumulative_and_last_equals_count() {
        let mut h = Histogram::ZERO;
        for ns in [256, 257, 384, 1 << 40] {
            h.record(ns);
        }
        let mut t = Text::default();
        t.family("t_seconds", Kind::Histogram, "T.");
        t.histogram(&[("w", "0")], &h);
        let text = t.finish();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[2], "t_seconds_bucket{w=\"0\",le=\"0.000000256\"} 1");
        assert_eq!(lines[3], "t_seconds_bucket{w=\"0\",le=\"0.000000384\"} 3");
        let n = lines.len();
        assert_eq!(
            lines[n - 3..],
            [
                "t_seconds_bucket{w=\"0\",le=\"+Inf\"} 4",
                "t_seconds_sum{w=\"0\"} 1099.511628673",
                "t_seconds_count{w=\"0\"} 4"
            ]
        );
    }
}
