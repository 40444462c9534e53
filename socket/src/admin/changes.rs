//! The answers to requests that change the appliance or show its settings.

use serde::{Deserialize, Serialize};

/// The last lines of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLines {
    /// The lines, the oldest first, without line ends.
    pub lines: Vec<String>,
    /// Number of older lines that were dropped.
    pub dropped: u64,
}

/// The state of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drained {
    /// Beginning of the drain, since the start. A drain that goes on already keeps its beginning.
    pub since_ns: u64,
    /// Connections that are left, in any state.
    pub conns: usize,
    /// Applications of other processes that are left.
    pub applications: usize,
}

/// All settings in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Path of the configuration file, if the appliance has one.
    pub file: Option<String>,
    /// The settings as a configuration file.
    pub text: String,
    /// The settings by their keys, as in the file.
    pub settings: serde_json::Value,
}

/// How the settings in force differ from the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Differences {
    /// Path of the configuration file.
    pub file: String,
    /// The settings that differ, in the order of their keys.
    pub differences: Vec<Difference>,
}

/// A setting with two values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Path of the key, as `port[0].mtu`.
    pub key: String,
    /// The value in force; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<serde_json::Value>,
    /// The value of the file, or its default; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<serde_json::Value>,
    /// Why only a restart brings the value of the file into force; absent if a reload does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<String>,
}

/// Result of reading the configuration again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Changes that were carried out, in order.
    pub applied: Vec<String>,
    /// Changes that failed, and why; the next reload tries them again.
    pub failed: Vec<String>,
}
