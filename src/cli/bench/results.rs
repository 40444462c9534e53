//! Where the results of `heddle bench` go.

use std::io::{Write as _, stderr};

use heddle_perf::document::{Document, Measured};
use heddle_perf::output::Output;

use super::super::{Failure, say};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Results")]
pub(crate) struct ResultArgs {
    /// Write all figures to FILE as JSON; - is standard output, and the table then goes to standard
    /// error
    #[arg(long, value_name = "FILE")]
    json: Option<Output>,
    /// Write a header and a line for each run to FILE, as values separated by commas; - is standard
    /// output
    #[arg(long, value_name = "FILE")]
    csv: Option<Output>,
    /// Write a page of HTML to FILE, with plots, parameters, host and the counters of both ends
    #[arg(long, value_name = "FILE")]
    report: Option<Output>,
}

impl ResultArgs {
    fn all(&self) -> impl Iterator<Item = (&'static str, &Output)> {
        let all = [("--json", &self.json), ("--csv", &self.csv), ("--report", &self.report)];
        all.into_iter().filter_map(|(name, output)| Some((name, output.as_ref()?)))
    }

    /// Refuses places where nothing can be written, before anything is measured.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.all().filter(|(_, output)| **output == Output::Stdout).count() > 1 {
            return Err(Failure::usage("only one of --json, --csv and --report can be -"));
        }
        for (name, output) in self.all() {
            if let Some(fault) = output.fault() {
                return Err(Failure::usage(format!("{name}: {fault}")));
            }
        }
        Ok(())
    }

    /// Returns true if results go to standard output, so that nothing else may.
    pub(super) fn take_stdout(&self) -> bool {
        self.all().any(|(_, output)| *output == Output::Stdout)
    }

    /// Shows text for people.
    pub(super) fn say(&self, text: &str) {
        if self.take_stdout() {
            // The process has no other place to report that stderr is closed.
            let _ = stderr().write_all(text.as_bytes());
        } else {
            say(text);
        }
    }

    /// Shows the warnings of a document, and writes it wherever the user wants it.
    pub(super) fn write<R: Measured>(&self, document: &Document<R>) -> Result<(), Failure> {
        for warning in &document.warnings {
            self.say(&format!("warning: {warning}\n"));
        }
        if let Some(output) = &self.json {
            output.write(&document.to_json()?)?;
        }
        if let Some(output) = &self.csv {
            output.write(&document.to_csv())?;
        }
        if let Some(output) = &self.report {
            output.write(&document.to_html())?;
        }
        Ok(())
    }
}
