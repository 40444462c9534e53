//! `heddle config`: the settings in force, and their difference from the file.

use std::path::PathBuf;

use clap::Subcommand;
use heddle_daemon::Config;
use heddle_socket::admin::{Difference, Differences, Request, Settings};
use serde_json::Value;

use super::Where;
use crate::cli::{Failure, serve};

/// The commands for settings.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show all settings, also those that have their default, as a configuration file
    Show {
        /// Show those that a file would give, instead of those of the running appliance
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        #[command(flatten)]
        at: Where,
    },
    /// Show what the file of a running appliance has otherwise than the appliance, and whether a
    /// reload would do or a restart is needed
    Diff {
        #[command(flatten)]
        at: Where,
    },
}

pub(crate) fn config(command: &ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Show { config: None, at } => at.show(&Request::Config, text),
        ConfigCommand::Show { config: Some(file), at } => {
            let config = Config::read(file).map_err(|e| serve::of_config(&e))?;
            let settings = Settings {
                file: Some(file.display().to_string()),
                text: config.to_text().map_err(Failure::failed)?,
                settings: config.to_value().map_err(Failure::failed)?,
            };
            at.print(&settings, text)
        }
        ConfigCommand::Diff { at } => at.show(&Request::ConfigDiff, differences),
    }
}

fn text(s: &Settings) -> String {
    let from = s.file.as_deref().map_or_else(|| "flags".into(), |f| format!("{f:?}"));
    format!("# All settings, from {from}.\n{}", s.text)
}

fn differences(d: &Differences) -> String {
    if d.differences.is_empty() {
        return format!("{} is in force\n", d.file);
    }
    let each = d.differences.iter().map(|Difference { key, running, file, restart }| {
        let needs = match restart {
            None => "reload".to_owned(),
            Some(why) => format!("restart: {why}"),
        };
        format!("{key}: {} -> {} ({needs})\n", value(running.as_ref()), value(file.as_ref()))
    });
    let mut text: String = each.collect();
    if d.differences.iter().any(|d| d.restart.is_some()) {
        text += "A reload changes nothing as long as the file has a change that needs a restart.\n";
    }
    text
}

fn value(v: Option<&Value>) -> String {
    v.map_or_else(|| "none".into(), Value::to_string)
}
