//! The recent share of each function's requests in time, computed from counts of pods of role `data` since their start.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use policy::window::{Counts, Window};
use policy::{Span, Time};

use crate::answers::DataAnswer;

/// Period over which requests in time are counted.
const SPAN: Span = Span::from_secs(300);
/// Time after which the counts of an absent pod are dropped.
const POD_KEPT: Span = Span::from_secs(3_600);

/// Namespace and name of a function or of a revision.
pub(crate) type Name = (String, String);

/// The recent counts of all functions.
#[derive(Debug, Default)]
pub(crate) struct Attainment {
    windows: BTreeMap<Name, Window>,
    first: Option<Baseline>,
    /// Time of each pod's last presence.
    pods: BTreeMap<String, Time>,
}

/// The pods and revisions present at the first answer. Counts of such a pod for such a revision may date from any time;
/// all others started later.
#[derive(Debug)]
struct Baseline {
    pods: BTreeSet<String>,
    revisions: BTreeSet<Name>,
}

impl Attainment {
    /// Records the counts of pods until `now`. Pods that are present and have not answered have `None`.
    pub(crate) fn observe(&mut self, now: Time, answers: &[(String, Option<DataAnswer>)]) {
        for (pod, _) in answers {
            self.pods.insert(pod.clone(), now);
        }
        let answered = answers
            .iter()
            .filter_map(|(pod, answer)| Some((pod, answer.as_ref()?)));
        let counted = || {
            answered.clone().flat_map(|(pod, answer)| {
                let functions = answer.functions.iter();
                functions.flat_map(move |own| own.variants.iter().map(move |it| (pod, own, it)))
            })
        };
        if answered.clone().next().is_none() {
            return;
        }
        let revision = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        let first = self.first.get_or_insert_with(|| Baseline {
            pods: self.pods.keys().cloned().collect(),
            revisions: counted()
                .map(|(_, own, it)| revision(&own.namespace, &it.revision))
                .collect(),
        });
        for (pod, own, variant) in counted() {
            let name = (own.namespace.clone(), own.function.clone());
            let of = revision(&own.namespace, &variant.revision);
            let is_new = !first.pods.contains(pod) || !first.revisions.contains(&of);
            let counts = Counts {
                judged: variant.judged,
                in_time: variant.in_time,
            };
            let window = self.windows.entry(name).or_default();
            window.observe(now, source(pod, &variant.revision), counts, is_new);
        }
        if answers.iter().all(|(_, answer)| answer.is_some()) {
            let revisions = counted().map(|(_, own, it)| {
                let name = (own.namespace.as_str(), own.function.as_str());
                (name, it.revision.as_str())
            });
            self.forget(now, &revisions.collect());
        }
    }

    /// Drops functions and revisions that are not among these, and pods that have been absent for [`POD_KEPT`].
    fn forget(&mut self, now: Time, revisions: &BTreeSet<((&str, &str), &str)>) {
        self.pods.retain(|_, at| now.since(*at) < POD_KEPT);
        let mut kept: BTreeMap<(&str, &str), HashSet<u64>> = BTreeMap::new();
        for (name, revision) in revisions {
            let sources = self.pods.keys().map(|pod| source(pod, revision));
            kept.entry(*name).or_default().extend(sources);
        }
        self.windows.retain(|(namespace, function), window| {
            let kept = kept.get(&(namespace.as_str(), function.as_str()));
            if let Some(kept) = kept {
                window.retain(|source| kept.contains(&source));
            }
            kept.is_some()
        });
    }

    /// Returns the numbers of a function's requests that were judged and that were in time in the last five minutes.
    pub(crate) fn counts(&self, now: Time, name: &Name) -> Counts {
        let window = self.windows.get(name);
        window.map_or_else(Counts::default, |window| window.counts(now, SPAN))
    }
}

/// Returns the key in a window for the counts of a revision by a pod: FNV-1a.
fn source(pod: &str, revision: &str) -> u64 {
    let bytes = pod.bytes().chain([b'/']).chain(revision.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::{DataFunction, DataVariant};

    fn at(second: u64) -> Time {
        Time(second * 1_000_000_000)
    }

    fn answer(counted: &[(&str, u64)]) -> DataAnswer {
        let variants = counted.iter().map(|(revision, judged)| DataVariant {
            revision: (*revision).to_owned(),
            judged: *judged,
            in_time: *judged,
            ..DataVariant::default()
        });
        DataAnswer {
            functions: vec![DataFunction {
                namespace: "default".to_owned(),
                function: "f".to_owned(),
                variants: variants.collect(),
                ..DataFunction::default()
            }],
        }
    }

    fn pods(all: &[(&str, Option<DataAnswer>)]) -> Vec<(String, Option<DataAnswer>)> {
        let all = all.iter();
        all.map(|(name, answer)| ((*name).to_owned(), answer.clone()))
            .collect()
    }

    fn judged(own: &Attainment, second: u64) -> u64 {
        own.counts(at(second), &("default".to_owned(), "f".to_owned()))
            .judged
    }

    #[test]
    fn counts_from_before_the_first_query_are_ignored_whenever_the_pod_answers() {
        let mut own = Attainment::default();
        // Without an answer the present revisions are unknown.
        own.observe(at(0), &pods(&[("a", None), ("b", None)]));
        own.observe(
            at(1),
            &pods(&[("a", Some(answer(&[("1", 900)]))), ("b", None)]),
        );
        own.observe(
            at(2),
            &pods(&[("a", Some(answer(&[("1", 905)]))), ("b", None)]),
        );
        assert_eq!(judged(&own, 2), 5);
        let both = |a, b| {
            pods(&[
                ("a", Some(answer(&[("1", a)]))),
                ("b", Some(answer(&[("1", b)]))),
            ])
        };
        own.observe(at(3), &both(905, 7_000));
        assert_eq!(judged(&own, 3), 5);
        own.observe(at(4), &both(905, 7_003));
        assert_eq!(judged(&own, 4), 8);
        // All pods are absent for a while: their counts are kept.
        own.observe(at(5), &[]);
        own.observe(at(6), &both(906, 7_003));
        assert_eq!(judged(&own, 6), 9);
    }

    #[test]
    fn later_pods_and_revisions_count_from_their_start() {
        let mut own = Attainment::default();
        own.observe(at(1), &pods(&[("a", Some(answer(&[("1", 900)])))]));
        // A later revision, and a later pod.
        own.observe(
            at(2),
            &pods(&[("a", Some(answer(&[("1", 900), ("2", 4)])))]),
        );
        assert_eq!(judged(&own, 2), 4);
        let two = |b| {
            pods(&[
                ("a", Some(answer(&[("1", 900), ("2", 4)]))),
                ("b", Some(answer(&[("1", b)]))),
            ])
        };
        own.observe(at(3), &two(3));
        assert_eq!(judged(&own, 3), 7);
        // A program restarted under the same name counts from 0.
        own.observe(at(4), &two(1));
        assert_eq!(judged(&own, 4), 8);
        assert_eq!(judged(&own, 400), 0);
    }

    #[test]
    fn deleted_functions_are_dropped_once_all_pods_have_answered() {
        let mut own = Attainment::default();
        own.observe(at(1), &pods(&[("a", Some(answer(&[("1", 0)])))]));
        own.observe(at(2), &pods(&[("a", Some(answer(&[("1", 6)])))]));
        own.observe(
            at(3),
            &pods(&[("a", Some(DataAnswer::default())), ("b", None)]),
        );
        assert_eq!(judged(&own, 3), 6);
        own.observe(at(4), &pods(&[("a", Some(DataAnswer::default()))]));
        assert_eq!(judged(&own, 4), 0);
        assert!(own.windows.is_empty());
    }
}
