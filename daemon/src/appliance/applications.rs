//! Records of the applications of other processes: one for each, and sums for metrics.
//!
//! A client chooses its own name, and Prometheus keeps a series for every name. So a user has at
//! most [`NAMES`] names, and all users together [`MOST`]; the applications beyond that are added up
//! as `(other)`.

use std::collections::BTreeMap;

use heddle_metrics::ApplicationSample;
use heddle_socket::admin::Application;

/// Largest number of distinct names of one user.
const NAMES: usize = 16;

/// Largest number of distinct pairs of user and name.
const MOST: usize = 256;

const OTHER: &str = "(other)";

/// A user, or `(other)` for further users, and the name of its applications.
type Label = (String, String);

/// Numbers of requests: all, refused, and those refused for a quota.
type Requests = [u64; 3];

/// The applications that run, and the sums of those that have ended.
#[derive(Debug, Default)]
pub(crate) struct Applications {
    live: BTreeMap<u64, Application>,
    /// All labels so far, with the requests of applications that have ended.
    gone: BTreeMap<Label, Requests>,
}

fn requests(a: &Application) -> Requests {
    [a.requests, a.refused, a.over_quota]
}

fn add(to: &mut Requests, more: Requests) {
    for (to, more) in to.iter_mut().zip(more) {
        *to = to.wrapping_add(more);
    }
}

impl Applications {
    /// Records the present state of an application.
    pub(crate) fn show(&mut self, seen: Application) {
        let label = self.label(&seen);
        self.gone.entry(label).or_default();
        self.live.insert(seen.application, seen);
    }

    /// Moves an application that has ended to the sums.
    pub(crate) fn gone(&mut self, number: u64) {
        if let Some(seen) = self.live.remove(&number) {
            let label = self.label(&seen);
            add(self.gone.entry(label).or_default(), requests(&seen));
        }
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Application> {
        self.live.get(&number)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Application> {
        self.live.values()
    }

    /// Returns the label of an application. No label is ever removed, so an application with a
    /// label of its own name keeps that label.
    fn label(&self, of: &Application) -> Label {
        let own = (of.uid.to_string(), of.name.clone());
        if self.gone.contains_key(&own) {
            return own;
        }
        let other = |user: &str| (user.to_owned(), OTHER.to_owned());
        // All labels count here, including those for the further names of a user.
        if self.gone.len() >= MOST {
            // The user's own label for others, if it was there before the places ran out.
            let others = other(&own.0);
            return if self.gone.contains_key(&others) { others } else { other(OTHER) };
        }
        let names = self.gone.keys().filter(|(user, _)| *user == own.0).count();
        if names >= NAMES { other(&own.0) } else { own }
    }

    /// Returns the sums by user and name.
    pub(crate) fn sample(&self) -> Vec<ApplicationSample> {
        let mut all: BTreeMap<Label, ApplicationSample> = BTreeMap::new();
        for ((user, name), [requests, refused, over_quota]) in &self.gone {
            let sample = ApplicationSample {
                user: user.clone(),
                name: name.clone(),
                requests: *requests,
                refused: *refused,
                over_quota: *over_quota,
                ..ApplicationSample::default()
            };
            all.insert((user.clone(), name.clone()), sample);
        }
        for a in self.live.values() {
            let Some(s) = all.get_mut(&self.label(a)) else { continue };
            s.devices += 1;
            s.memory = s.memory.saturating_add(a.memory);
            s.queue_pairs += a.queue_pairs;
            s.connections += a.connections;
            s.listeners += a.listeners;
            s.registrations += u64::from(a.registrations);
            s.requests = s.requests.wrapping_add(a.requests);
            s.refused = s.refused.wrapping_add(a.refused);
            s.over_quota = s.over_quota.wrapping_add(a.over_quota);
        }
        all.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn application(number: u64, uid: u32, name: &str) -> Application {
        let name = name.to_owned();
        Application {
            application: number,
            uid,
            name,
            memory: 10,
            requests: 3,
            ..Application::default()
        }
    }

    fn sum(all: &[ApplicationSample]) -> (usize, u64, u64) {
        all.iter().fold((0, 0, 0), |(d, m, r), s| (d + s.devices, m + s.memory, r + s.requests))
    }

    #[test]
    fn test_applications_of_one_name_are_summed_and_their_requests_stay_counted() {
        let mut a = Applications::default();
        for n in 0..3 {
            a.show(application(n, 7, "x"));
        }
        a.show(Application { memory: 20, requests: 4, ..application(2, 7, "x") });
        let [x] = &a.sample()[..] else { panic!("one label") };
        assert_eq!((x.user.as_str(), x.name.as_str()), ("7", "x"));
        assert_eq!((x.devices, x.memory, x.requests), (3, 40, 10));
        (0..3).for_each(|n| a.gone(n));
        a.gone(9);
        assert_eq!(sum(&a.sample()), (0, 0, 10));
        a.show(application(4, 7, "x"));
        assert_eq!(sum(&a.sample()), (1, 10, 13));
    }

    #[test]
    fn test_application_names_are_limited_per_user_and_in_total() {
        let mut a = Applications::default();
        for n in 0..1000 {
            a.show(application(n, 7, &format!("name {n}")));
        }
        assert_eq!(a.sample().len(), NAMES + 1);
        let other = a.sample().into_iter().find(|s| s.name == OTHER);
        assert_eq!(other.map(|s| (s.user, s.devices)), Some(("7".into(), 1000 - NAMES)));
        // A user with made-up names takes no names of other users.
        a.show(application(1000, 8, "y"));
        assert!(a.sample().iter().any(|s| (s.user.as_str(), s.name.as_str()) == ("8", "y")));
        for n in 2000..9000 {
            a.show(application(n, u32::try_from(n).unwrap_or(0), "z"));
        }
        assert_eq!(a.sample().len(), MOST + 1);
        assert_eq!(sum(&a.sample()).0, 1001 + 7000);
        // The programs of user 7 that had no label of their own keep the one they had.
        let other =
            a.sample().into_iter().find(|s| (s.user.as_str(), s.name.as_str()) == ("7", OTHER));
        assert_eq!(
            other.map(|s| (s.devices, s.requests)),
            Some((1000 - NAMES, 3 * (1000 - NAMES as u64)))
        );
        (0..9000).for_each(|n| a.gone(n));
        assert_eq!((a.sample().len(), sum(&a.sample())), (MOST + 1, (0, 0, 3 * 8001)));
    }
}
