//! Reports to systemd (sd_notify(3)), if it has started this process; otherwise these functions do
//! nothing.

use core::time::Duration;

use sd_notify::NotifyState;

use crate::appliance::Appliance;

fn tell(state: &[NotifyState<'_>]) {
    // A manager that does not listen is no reason to fail.
    if let Err(e) = sd_notify::notify(state) {
        tracing::debug!("systemd cannot be told: {e}");
    }
}

/// Reports that all services listen.
pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// Reports that the end has begun.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Reports that the appliance still runs.
pub(super) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// Returns the interval at which systemd wants that report.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// Reloads, with a report before and after (`Type=notify-reload`).
pub(super) async fn reload(app: &Appliance) {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
    // An error is logged, and is part of the status.
    let status = match app.reload().await {
        Ok(r) if r.failed.is_empty() => "running".to_owned(),
        Ok(r) => format!("reload: {}", r.failed.join("; ")),
        Err(fault) => format!("reload refused: {fault}"),
    };
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}
