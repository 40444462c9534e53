//! The commands of a block of shell code, as the shell sees them, but for expansions.

use std::collections::BTreeMap;

/// Words after which another command begins.
const AGAIN: [&str; 9] = ["&", "&&", "|", "||", ";", "do", "then", "until", "while"];

/// Returns the lines of a block, each with the lines that a backslash joins to it, without comments
/// of a whole line.
pub(crate) fn lines(block: &str) -> Vec<String> {
    let joined = block.replace("\\\n", " ");
    let lines = joined.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines.map(str::to_owned).collect()
}

/// Puts the values of variables in the places where a line names them.
fn expand(line: &str, variables: &BTreeMap<String, String>) -> String {
    let set = variables.iter().rev();
    set.fold(line.to_owned(), |line, (name, value)| line.replace(&format!("${name}"), value))
}

/// Returns the name and value that a word assigns.
fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    is_name.then_some((name, value))
}

/// Returns the simple commands of a line, each in words. A line that only assigns variables adds
/// them to `variables`; later lines may use them.
pub(crate) fn commands(
    line: &str,
    variables: &mut BTreeMap<String, String>,
) -> Result<Vec<Vec<String>>, String> {
    // A semicolon ends the word before it.
    let line = expand(line, variables).replace("; ", " ; ");
    let words = shlex::split(&line).ok_or_else(|| format!("quotes are not closed: {line}"))?;
    let mut commands = vec![Vec::new()];
    for word in words {
        let command = commands.last_mut().expect("begins with one");
        if AGAIN.contains(&word.as_str()) {
            commands.push(Vec::new());
        } else if let Some((name, value)) = assignment(&word).filter(|_| command.is_empty()) {
            variables.insert(name.to_owned(), value.to_owned());
        } else if word != "sudo" {
            command.push(word);
        }
    }
    commands.retain(|c| !c.is_empty());
    Ok(commands)
}
