//! `heddle generate`: makes the files that a package ships beside the program. The command reads
//! the same definitions by which the program parses its options, so files and program cannot
//! contradict each other.

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
        /// The target directory, which must exist
        dir: PathBuf,
    },
    /// Show the completions for a shell
    Completions {
        /// The shell to write completions for
        shell: Shell,
    },
}

/// The section that ends every page: clap knows the options, but not the exit status of the
/// program.
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

/// Makes the files that `args` ask for from `program`, the whole command line.
pub(crate) fn run(args: &Args, mut program: Command) -> Result<(), Failure> {
    match &args.what {
        What::Man { dir } => {
            // Makes the names below: `heddle-bench` for the page, `heddle bench` for the user to
            // type.
            program.build();
            pages(&program, None, dir)
        }
        What::Completions { shell } => {
            // Write to a buffer first, because the generator panics when its writer fails.
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut program, "heddle", &mut script);
            say(&String::from_utf8_lossy(&script));
            Ok(())
        }
    }
}

/// Writes the page of `command` and the pages of the commands below it. The name of a page is the
/// words that the user types, joined by `-`, as in git's pages.
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
    // Write the title line here: the generator has no argument for an empty date, and an empty date
    // there would let the version slip into its place. The page has no date, so that two builds
    // give the same bytes.
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

/// Escapes hyphens, because roff prints a minus only for an escaped one.
fn escaped(name: &str) -> String {
    name.replace('-', "\\-")
}
