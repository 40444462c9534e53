//! `heddle generate`: what a package ships beside the program, made from the same definitions that
//! the program reads its options by, so that neither can say what the other does not.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Failure, say};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Write a man page for every command (section 1)
    Man {
        /// Where to; it must be there
        dir: PathBuf,
    },
    /// Show the completions for a shell
    Completions {
        /// Whose
        shell: Shell,
    },
}

/// What every page says at its end: clap knows options, and not how a program ends.
const EXIT_STATUS: &str = ".SH \"EXIT STATUS\"
.TP
.B 0
What was asked for is done.
.TP
.B 1
It failed; one line on standard error says why.
.TP
.B 2
It was asked for wrongly.
";

/// Makes what `args` ask for out of `program`, the whole command line.
pub(crate) fn run(args: &Args, mut program: Command) -> Result<(), Failure> {
    match &args.what {
        What::Man { dir } => {
            // Makes the names below: `heddle-bench` of the page, `heddle bench` of what one types.
            program.build();
            pages(&program, None, dir)
        }
        What::Completions { shell } => {
            // To a buffer first: the generator does not take an error of the writer for an answer.
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut program, "heddle", &mut script);
            say(&String::from_utf8_lossy(&script));
            Ok(())
        }
    }
}

/// The page of `command` and those of the commands below it. A page has the words one types for its
/// name, with `-` between them, as git's and others' have.
fn pages(command: &Command, above: Option<&str>, dir: &Path) -> Result<(), Failure> {
    let name = name(command);
    let path = dir.join(format!("{name}.1"));
    fs::write(&path, page(command, above)?)
        .map_err(|e| Failure::failed(format!("{}: {e}", path.display())))?;
    for below in listed(command) {
        pages(below, Some(name), dir)?;
    }
    Ok(())
}

fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn listed(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|c| !c.is_hide_set())
}

fn page(command: &Command, above: Option<&str>) -> Result<Vec<u8>, Failure> {
    let man = Man::new(command.clone().subcommand_value_name("command"));
    // The title is ours: an empty date, for which the generator has no argument, would let the
    // version slip into its place. There is no date, so that two builds give the same octets.
    let title = escaped(name(command)).to_uppercase();
    let version = env!("CARGO_PKG_VERSION");
    let mut page = format!(".TH {title} 1 \"\" \"heddle {version}\" \"Heddle\"\n").into_bytes();
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if listed(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend_from_slice(EXIT_STATUS.as_bytes());
    let others = above.into_iter().chain(listed(command).map(name));
    let others: Vec<_> = others.map(|o| format!(".BR {} (1)", escaped(o))).collect();
    if !others.is_empty() {
        page.extend_from_slice(b".SH \"SEE ALSO\"\n");
        page.extend_from_slice(others.join(",\n").as_bytes());
        page.push(b'\n');
    }
    Ok(page)
}

/// A hyphen in roff is a minus only where it says so.
fn escaped(name: &str) -> String {
    name.replace('-', "\\-")
}
