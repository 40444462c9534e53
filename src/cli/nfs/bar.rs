//! The progress bar of a copy, on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between redraws while no data arrives.
const TICK: Duration = Duration::from_millis(250);

/// Bytes done of the bytes known so far, their rate and the remaining time; files; and the file
/// under way.
const TEMPLATE: &str = "{bar:24} {bytes}/{total_bytes} {bytes_per_sec} {eta}, {prefix} {wide_msg}";

/// A progress bar for all files of a copy. Dropping the bar removes it from the screen.
///
/// The total grows, because the copier discovers the files directory by directory.
#[derive(Debug)]
pub(super) struct Bar {
    bar: ProgressBar,
    /// Files copied, and files known so far.
    files: (u64, u64),
    /// Bytes of the files before the file under way.
    before: u64,
}

impl Bar {
    /// Makes a bar on standard error if that is a terminal, and an invisible bar otherwise or if
    /// `quiet`.
    pub(super) fn new(quiet: bool) -> Bar {
        Bar::on(if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() })
    }

    fn on(target: ProgressDrawTarget) -> Bar {
        let bar = ProgressBar::with_draw_target(Some(0), target);
        // The template is a constant, and a test checks it.
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        if !bar.is_hidden() {
            bar.enable_steady_tick(TICK);
        }
        Bar { bar, files: (0, 0), before: 0 }
    }

    /// Adds one file to the total; copying the file moves `bytes` bytes.
    pub(super) fn add(&mut self, bytes: u64) {
        self.files.1 += 1;
        self.bar.inc_length(bytes);
        self.count();
    }

    /// Begins the file called `name`.
    pub(super) fn begin(&mut self, name: String) {
        self.before = self.bar.position();
        self.bar.set_message(name);
    }

    /// Sets the bytes done of the current file. The number falls when the copier starts the file
    /// again.
    pub(super) fn at(&self, bytes: u64) {
        self.bar.set_position(self.before.saturating_add(bytes));
    }

    /// Marks the current file as done.
    pub(super) fn end(&mut self) {
        self.files.0 += 1;
        self.count();
    }

    fn count(&self) {
        let (done, all) = self.files;
        self.bar.set_prefix(format!("{done}/{all} files"));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    use indicatif::TermLike;

    use super::*;

    /// A fake terminal that keeps the current line, and every line drawn so far.
    #[derive(Clone, Debug, Default)]
    struct Terminal(Arc<Mutex<(String, Vec<String>)>>);

    impl Terminal {
        /// Waits for a redraw whose line contains `part`, and returns the line. The bar redraws
        /// only now and then.
        fn until(&self, part: &str) -> String {
            let end = Instant::now() + Duration::from_secs(60);
            loop {
                let line = self.0.lock().unwrap().0.clone();
                if line.contains(part) {
                    return line;
                }
                assert!(Instant::now() < end, "no {part:?} in {line:?}");
                std::thread::sleep(TICK / 10);
            }
        }
    }

    impl TermLike for Terminal {
        fn width(&self) -> u16 {
            120
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, line: &str) -> io::Result<()> {
            self.write_str(line)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            let mut shown = self.0.lock().unwrap();
            shown.0.push_str(text);
            let line = shown.0.clone();
            shown.1.push(line);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            self.0.lock().unwrap().0.clear();
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn test_progress_template_is_valid() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }

    #[test]
    fn test_progress_bar_shows_files_bytes_and_name_until_the_end() {
        let terminal = Terminal::default();
        let mut bar = Bar::on(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        bar.add(1 << 20);
        bar.add(3 << 20);
        bar.begin("one".into());
        bar.at(1 << 20);
        bar.end();
        bar.begin("two".into());
        bar.at(3 << 20);
        // The server restarted, so the copier starts the file again.
        bar.at(1 << 20);
        let line = terminal.until("2.00 MiB/4.00 MiB");
        for part in ["iB/s", "1/2 files", "two"] {
            assert!(line.contains(part), "{part}: {line}");
        }
        drop(bar);
        let (line, all) = terminal.0.lock().unwrap().clone();
        assert_eq!(line.trim(), "", "what is left of it");
        assert!(all.iter().any(|line| line.contains("one")), "{all:?}");
    }

    #[test]
    fn test_quiet_bar_shows_nothing() {
        assert!(Bar::new(true).bar.is_hidden());
    }

    /// A server may claim any size.
    #[test]
    fn test_progress_bar_shows_false_sizes_without_failing() {
        let terminal = Terminal::default();
        let mut bar = Bar::on(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        for size in [u64::MAX, u64::MAX, 0] {
            bar.add(size);
            bar.begin("file".into());
            bar.at(u64::MAX);
            bar.at(5);
            bar.end();
        }
        terminal.until("3/3 files");
    }
}
