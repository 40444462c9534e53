//! Records of the applications of other processes: one for each, and sums for metrics.
//!
//! A client chooses its own name, and Prometheus keeps a series for every name. So a user has at
//! most [`NAMES`] names, and all users together [`MOST`]; the applications beyond that are added up
//! as `(other)`.

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_hub::Share;
use heddle_metrics::{ApplicationSample, ShareSample};
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

/// An application that runs.
#[derive(Debug)]
struct Live {
    seen: Application,
    /// The rule that covers it.
    rule: String,
    share: Arc<Share>,
}

/// The applications that run, and the sums of those that have ended.
#[derive(Debug, Default)]
pub(crate) struct Applications {
    live: BTreeMap<u64, Live>,
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
    /// Records the present state of an application that `rule` covers.
    pub(crate) fn show(&mut self, seen: Application, rule: &str, share: &Arc<Share>) {
        let label = self.label(&seen);
        self.gone.entry(label).or_default();
        let live = Live { seen, rule: rule.to_owned(), share: share.clone() };
        self.live.insert(live.seen.application, live);
    }

    /// Moves an application that has ended to the sums.
    pub(crate) fn gone(&mut self, number: u64) {
        if let Some(Live { seen, .. }) = self.live.remove(&number) {
            let label = self.label(&seen);
            add(self.gone.entry(label).or_default(), requests(&seen));
        }
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Application> {
        self.live.get(&number).map(|live| &live.seen)
    }

    /// Returns the number of applications that run.
    pub(crate) fn count(&self) -> usize {
        self.live.len()
    }

    /// Returns all applications that run, with the present state of their shares.
    pub(crate) fn all(&self) -> Vec<Application> {
        let all = self.live.values().map(|Live { seen, share, .. }| {
            let (terms, usage) = (share.terms(), share.usage());
            Application {
                weight: terms.weight,
                rate: terms.rate,
                rate_waits: usage.waits,
                rate_waited_ns: u64::try_from(usage.waited.as_nanos()).unwrap_or(u64::MAX),
                ..seen.clone()
            }
        });
        all.collect()
    }

    /// Returns the shares of the applications that run, each once.
    pub(crate) fn shares(&self) -> Vec<ShareSample> {
        let mut all = BTreeMap::new();
        for live in self.live.values() {
            all.entry(live.share.number())
                .or_insert_with(|| share(&live.seen.uid.to_string(), &live.rule, &live.share));
        }
        all.into_values().collect()
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
        for Live { seen: a, .. } in self.live.values() {
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

/// Returns the present state of a share.
pub(crate) fn share(user: &str, rule: &str, share: &Share) -> ShareSample {
    let (terms, usage) = (share.terms(), share.usage());
    ShareSample {
        user: user.to_owned(),
        rule: rule.to_owned(),
        weight: terms.weight,
        rate: terms.rate,
        sent: usage.sent,
        waits: usage.waits,
        waited: usage.waited,
    }
}

#[cfg(test)]
mod tests {
    use heddle_hub::ShareTerms;

    use super::*;

    /// Records applications of one share.
    trait Shown {
        fn see(&mut self, seen: Application);
    }

    impl Shown for Applications {
        fn see(&mut self, seen: Application) {
            self.show(seen, "any", &Share::new(1, ShareTerms::default()));
        }
    }

    #[test]
    fn test_applications_of_one_share_are_one_sample_with_its_present_terms() {
        let mut a = Applications::default();
        let (one, other) =
            (Share::new(1, ShareTerms::default()), Share::new(2, ShareTerms::default()));
        a.show(application(0, 7, "x"), "any", &one);
        a.show(application(1, 7, "y"), "any", &one);
        a.show(application(2, 8, "x"), "user:8", &other);
        one.set(ShareTerms { weight: 5, rate: Some(1000), connection_rate: None });
        let seen: Vec<_> =
            a.shares().into_iter().map(|s| (s.user, s.rule, s.weight, s.rate)).collect();
        let row = |user: &str, rule: &str, weight, rate| (user.into(), rule.into(), weight, rate);
        assert_eq!(seen, [row("7", "any", 5, Some(1000)), row("8", "user:8", 1, None)]);
        let shown: Vec<_> = a.all().iter().map(|a| (a.weight, a.rate)).collect();
        assert_eq!(shown, [(5, Some(1000)), (5, Some(1000)), (1, None)]);
    }

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
            a.see(application(n, 7, "x"));
        }
        a.see(Application { memory: 20, requests: 4, ..application(2, 7, "x") });
        let [x] = &a.sample()[..] else { panic!("one label") };
        assert_eq!((x.user.as_str(), x.name.as_str()), ("7", "x"));
        assert_eq!((x.devices, x.memory, x.requests), (3, 40, 10));
        (0..3).for_each(|n| a.gone(n));
        a.gone(9);
        assert_eq!(sum(&a.sample()), (0, 0, 10));
        a.see(application(4, 7, "x"));
        assert_eq!(sum(&a.sample()), (1, 10, 13));
    }

    #[test]
    fn test_application_names_are_limited_per_user_and_in_total() {
        let mut a = Applications::default();
        for n in 0..1000 {
            a.see(application(n, 7, &format!("name {n}")));
        }
        assert_eq!(a.sample().len(), NAMES + 1);
        let other = a.sample().into_iter().find(|s| s.name == OTHER);
        assert_eq!(other.map(|s| (s.user, s.devices)), Some(("7".into(), 1000 - NAMES)));
        // A user with made-up names takes no names of other users.
        a.see(application(1000, 8, "y"));
        assert!(a.sample().iter().any(|s| (s.user.as_str(), s.name.as_str()) == ("8", "y")));
        for n in 2000..9000 {
            a.see(application(n, u32::try_from(n).unwrap_or(0), "z"));
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
