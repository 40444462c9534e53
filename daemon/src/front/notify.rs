//! What systemd is told (sd_notify(3)), where it has started us; elsewhere nobody is.

use core::time::Duration;

use sd_notify::NotifyState;

use crate::appliance::Appliance;

fn tell(state: &[NotifyState<'_>]) {
    // A manager that does not listen is no reason to fail.
    if let Err(e) = sd_notify::notify(state) {
        tracing::debug!("systemd cannot be told: {e}");
    }
}

/// All services listen.
pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The end has begun.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// It still runs.
pub(super) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// How often it wants to hear that.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// Reloads, and says so before and after (`Type=notify-reload`).
pub(super) async fn reload(app: &Appliance) {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
    // What went wrong is logged, and part of the status.
    let status = match app.reload().await {
        Ok(r) if r.failed.is_empty() => "running".to_owned(),
        Ok(r) => format!("reload: {}", r.failed.join("; ")),
        Err(fault) => format!("reload refused: {fault}"),
    };
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}
