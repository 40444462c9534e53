//! Checks that the documents describe the command line as it is: each command that they show is one
//! that this program takes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use super::{Cli, Command, serve};

#[path = "../../tests/support/pages.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod pages;
#[path = "../../tests/support/shell.rs"]
mod shell;

use pages::{Page, pages};

/// Pages outside `docs/` with commands for users.
const MORE: [&str; 4] = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "packaging/README.md"];

/// Returns true if a command starts this program, from whatever directory.
fn is_heddle(program: &str) -> bool {
    program.rsplit('/').next() == Some("heddle")
}

/// Returns the reason why `heddle` would refuse a command as wrong usage.
fn refusal(command: &[String]) -> Option<String> {
    let cli = match Cli::try_parse_from(command) {
        Ok(cli) => cli,
        Err(e) if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return None;
        }
        Err(e) => return Some(e.to_string()),
    };
    // The command itself checks the rest, before it opens a device.
    let checked = match &cli.command {
        Command::Serve(args) => serve::check_shown(args),
        _ => Ok(()),
    };
    checked.err().map(|e| format!("{e:?}"))
}

/// Returns a complaint if the program is one of this repository's scripts, and does not exist.
fn absent(program: &str) -> Option<String> {
    let path = program.trim_start_matches("./");
    let ours = ["scripts/", "packaging/"].iter().any(|dir| path.starts_with(dir));
    (ours && !pages::root().join(path).exists()).then(|| format!("there is no {path}"))
}

/// Returns the reason why a command within a sentence names anything that does not exist. Such a
/// command may lack arguments.
fn unknown(command: &[String]) -> Option<String> {
    let e = Cli::try_parse_from(command).err()?;
    let lacks = [
        ErrorKind::DisplayHelp,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
        ErrorKind::MissingRequiredArgument,
        ErrorKind::MissingSubcommand,
    ];
    (!lacks.contains(&e.kind())).then(|| e.to_string())
}

/// Returns the lines of a block that people type: all lines of a shell's block, and the lines after
/// a prompt of a block with output.
fn typed(block: &pages::Block) -> Vec<String> {
    match block.info.first().map(String::as_str) {
        Some("sh") => shell::lines(&block.text),
        _ => block.text.lines().filter_map(|l| l.strip_prefix("$ ")).map(str::to_owned).collect(),
    }
}

#[test]
fn test_every_command_of_a_block_in_the_documents_is_accepted() {
    let (mut faults, mut commands) = (Vec::new(), 0);
    for path in pages("docs", &MORE) {
        // A variable holds to the end of its page.
        let mut variables = BTreeMap::from([("PWD".to_owned(), "/srv".to_owned())]);
        for block in Page::read(&path).blocks {
            for line in typed(&block) {
                let all = shell::commands(&line, &mut variables).unwrap();
                faults.extend(all.iter().filter_map(|c| absent(&c[0])));
                for command in all.iter().filter(|c| is_heddle(&c[0])) {
                    commands += 1;
                    let place = format!("{}:{}: {line}", path.display(), block.line);
                    faults.extend(refusal(command).map(|why| format!("{place}: {why}")));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(commands > 30, "only {commands} commands were found");
}

#[test]
fn test_every_command_within_a_sentence_of_the_documents_exists() {
    let (mut faults, mut commands) = (Vec::new(), 0);
    for path in pages("docs", &MORE) {
        for (line, code) in Page::read(&path).code {
            // Words that stand for an address and a port.
            let code = code.replace("ADDR", "10.0.0.1").replace("PORT", "7174");
            for command in shell::commands(&code, &mut BTreeMap::new()).unwrap_or_default() {
                if is_heddle(&command[0]) && command.len() > 1 {
                    commands += 1;
                    let place = format!("{}:{line}: {code}", path.display());
                    faults.extend(unknown(&command).map(|why| format!("{place}: {why}")));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(commands > 50, "only {commands} commands were found");
}

#[test]
fn test_wrong_command_of_a_document_is_refused() {
    let words = |line: &str| shell::commands(line, &mut BTreeMap::new()).unwrap().remove(0);
    for line in [
        "heddle nothing",
        "heddle status --nothing",
        "heddle serve --listen 10.0.0.1:20049=nfs:/srv/data",
        "heddle serve --vdev net_tap0 --ip 10.0.0.1/24 --listen 10.0.0.2:7174=rping",
        "heddle serve --config docs/nothing.toml",
        "heddle bench --op nothing",
        "heddle listen add",
    ] {
        assert!(refusal(&words(line)).is_some(), "{line}");
    }
    assert_eq!(unknown(&words("heddle listen add")), None);
    assert!(unknown(&words("heddle listen alter")).is_some());
    assert!(unknown(&words("heddle nfs --jsn")).is_some());
    assert!(absent("./scripts/nothing").is_some() && absent("./scripts/demo").is_none());
    let mut variables = BTreeMap::new();
    assert_eq!(shell::commands("R=\"-c -a 10.0.0.1\"", &mut variables), Ok(vec![]));
    let commands =
        shell::commands("sudo A=1 heddle rping $R & heddle x | less # y", &mut variables);
    let expected = [&["heddle", "rping", "-c", "-a", "10.0.0.1"][..], &["heddle", "x"], &["less"]];
    assert_eq!(commands.unwrap(), expected);
    assert_eq!(shell::lines("# a\nheddle b \\\n  c\n"), ["heddle b    c"]);
}

/// The page of all commands shows each of them once, and each option that it shows exists.
#[test]
fn test_page_of_the_command_line_names_every_command() {
    let page = Page::read(Path::new("docs/guide/command-line.md"));
    let code: BTreeSet<&str> = page.code.iter().map(|(_, c)| c.as_str()).collect();
    for command in Cli::command().get_subcommands() {
        let name = command.get_name();
        let named = code.iter().any(|c| *c == name || c.split(' ').nth(1) == Some(name));
        assert!(named, "docs/guide/command-line.md does not explain {name}");
    }
}

/// Adds the options of a command and of its own commands.
fn options(command: &clap::Command, all: &mut BTreeSet<String>) {
    all.extend(command.get_arguments().filter_map(|a| a.get_long()).map(|l| format!("--{l}")));
    command.get_subcommands().for_each(|c| options(c, all));
}

/// The synopsis shows no option that its command does not have.
#[test]
fn test_synopsis_of_the_command_line_shows_options_that_exist() {
    let page = Page::read(Path::new("docs/guide/command-line.md"));
    let synopsis = &page.blocks[0].text;
    let root = Cli::command();
    // After the commands come names for options that several of them take.
    let mut taken = BTreeSet::new();
    options(&root, &mut taken);
    let mut shown = 0;
    for line in synopsis.lines() {
        if let Some(names) = line.strip_prefix("heddle ") {
            taken.clear();
            let names = names.split(" | ").filter_map(|n| n.split_whitespace().next());
            let commands: Vec<_> = names.filter_map(|n| root.find_subcommand(n)).collect();
            assert!(!commands.is_empty(), "{line}");
            commands.into_iter().for_each(|c| options(c, &mut taken));
        } else if !line.starts_with(' ') {
            options(&root, &mut taken);
        }
        let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        for option in words.filter(|w| w.starts_with("--") && w.len() > 2) {
            shown += 1;
            assert!(taken.contains(option), "{option} in {line:?}");
        }
    }
    assert!(shown > 50, "only {shown} options were found");
}

/// Commands that take `-q` and `-v` are listed in one sentence.
#[test]
fn test_page_of_the_command_line_names_the_commands_with_a_log() {
    let text = std::fs::read_to_string(pages::root().join("docs/guide/command-line.md")).unwrap();
    let sentence = text.split("\n\n").find(|p| p.contains("also take `-q`")).unwrap();
    let listed = sentence.split(" also take").next().unwrap();
    let listed: BTreeSet<&str> = listed.split('`').skip(1).step_by(2).collect();
    let quiet = |c: &clap::Command| c.get_arguments().any(|a| a.get_id() == "quiet");
    let root = Cli::command();
    let with_log = root.get_subcommands().filter(|c| quiet(c) || c.get_subcommands().any(quiet));
    assert_eq!(listed, with_log.map(clap::Command::get_name).collect());
}
