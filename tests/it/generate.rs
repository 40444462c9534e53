//! Makes man pages and completions as a package does.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn heddle(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_heddle")).args(args).output().unwrap()
}

fn stdout(args: &[&str]) -> String {
    let out = heddle(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Returns the commands that the help of `command` lists.
fn listed(command: &[String]) -> Vec<String> {
    let mut args: Vec<&str> = command.iter().map(String::as_str).collect();
    args.push("--help");
    let help = stdout(&args);
    let lines = help.lines().skip_while(|l| *l != "Commands:").skip(1);
    let lines = lines.take_while(|l| l.starts_with("  "));
    lines.filter_map(|l| Some(l.split_whitespace().next()?.to_owned())).collect()
}

/// Returns every command and the commands below it, each as its words.
fn commands() -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let mut next = 0;
    while let Some(command) = all.get(next).cloned() {
        all.extend(listed(&command).into_iter().filter(|c| c != "help").map(|below| {
            let mut words = command.clone();
            words.push(below);
            words
        }));
        next += 1;
    }
    assert!(all.len() > 5, "{all:?}");
    all
}

fn pages(dir: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// Returns the complaints of `tool` about a page; empty if there are none.
fn complaints(tool: &str, args: &[&str], page: &Path) -> String {
    let out = Command::new(tool).args(args).arg(page).output().unwrap_or_else(|e| {
        panic!("{tool}: {e}; apt-get install groff-base mandoc, as scripts/test does")
    });
    // mandoc complains on stdout, groff on stderr.
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

#[test]
fn test_every_command_has_a_man_page_and_every_page_a_command() {
    let dir = tempfile::tempdir().unwrap();
    stdout(&["generate", "man", dir.path().to_str().unwrap()]);
    let want = commands().into_iter().map(|words| {
        let words: Vec<&str> =
            ["heddle"].into_iter().chain(words.iter().map(String::as_str)).collect();
        format!("{}.1", words.join("-"))
    });
    assert_eq!(pages(dir.path()), want.collect());
}

#[test]
fn test_man_pages_have_every_option_of_the_help_and_render_without_complaint() {
    let dir = tempfile::tempdir().unwrap();
    stdout(&["generate", "man", dir.path().to_str().unwrap()]);
    for words in commands() {
        let name: Vec<&str> =
            ["heddle"].into_iter().chain(words.iter().map(String::as_str)).collect();
        let path = dir.path().join(format!("{}.1", name.join("-")));
        let page = fs::read_to_string(&path).unwrap().replace("\\-", "-");
        let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
        args.push("--help");
        let help = stdout(&args);
        let options = help.split_whitespace().filter(|w| w.starts_with("--"));
        // `--option[=<VALUE>]` and `--option,` too.
        let end = |c: char| !(c.is_ascii_alphanumeric() || c == '-');
        for option in options.map(|o| o.split(end).next().unwrap()) {
            assert!(page.contains(option), "{name:?} has no {option}");
        }
        assert_eq!(complaints("groff", &["-ww", "-man", "-z", "-Tutf8"], &path), "", "{name:?}");
        assert_eq!(complaints("mandoc", &["-T", "lint", "-W", "error"], &path), "", "{name:?}");
    }
}

#[test]
fn test_two_runs_give_the_same_pages() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in [&a, &b] {
        stdout(&["generate", "man", dir.path().to_str().unwrap()]);
    }
    for page in pages(a.path()) {
        let read = |dir: &Path| fs::read(dir.join(&page)).unwrap();
        assert_eq!(read(a.path()), read(b.path()), "{page}");
    }
}

#[test]
fn test_man_page_error_names_missing_directory() {
    let out = heddle(&["generate", "man", "/nonexistent/there"]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("/nonexistent/there/heddle.1"), "{text}");
}

#[test]
fn test_completions_name_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&["generate", "completions", shell]);
        for command in listed(&[]) {
            assert!(script.contains(&command), "{shell}: {command}");
        }
    }
    assert_eq!(heddle(&["generate", "completions", "sh"]).status.code(), Some(2));
}

/// The test runs the script in the shell that it is for, and asks for its completions.
#[test]
fn test_bash_completes_commands_and_options() {
    let mut script = stdout(&["generate", "completions", "bash"]);
    script.push_str(
        "COMP_WORDS=(heddle ser); COMP_CWORD=1; _heddle heddle ser heddle; echo \"${COMPREPLY[@]}\"\n\
         COMP_WORDS=(heddle serve --keep); COMP_CWORD=2; _heddle heddle --keep serve\n\
         echo \"${COMPREPLY[@]}\"\n",
    );
    let mut bash = Command::new("bash");
    let bash = bash.args(["--norc"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = bash.spawn().unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    assert_eq!(String::from_utf8_lossy(&out.stdout), "serve\n--keepalive\n");
}
