//! How many requests of each function were in time of late, from what pods of role `data` have counted since they began.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use policy::window::{Counts, Window};
use policy::{Span, Time};

use crate::answers::DataAnswer;

/// Over this time requests in time are counted.
const SPAN: Span = Span::from_secs(300);
/// What a pod has counted that has not been there for so long is forgotten.
const POD_KEPT: Span = Span::from_secs(3_600);

/// A function's, or a revision's, namespace and name.
pub(crate) type Name = (String, String);

/// The last minutes of all functions.
#[derive(Debug, Default)]
pub(crate) struct Attainment {
    windows: BTreeMap<Name, Window>,
    first: Option<First>,
    /// When each pod was last there.
    pods: BTreeMap<String, Time>,
}

/// What was there at the first answer. What such a pod has counted of such a revision may be of any time; all others began to count later.
#[derive(Debug)]
struct First {
    pods: BTreeSet<String>,
    revisions: BTreeSet<Name>,
}

impl Attainment {
    /// Takes what pods have counted until `now`. Pods that are there and have not answered have `None`.
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
        let first = self.first.get_or_insert_with(|| First {
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

    /// Forgets functions and revisions that are not among these, and pods that have been gone for long.
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

    /// Returns how many requests of a function were judged in the last five minutes, and how many of them were in time.
    pub(crate) fn counts(&self, now: Time, name: &Name) -> Counts {
        let window = self.windows.get(name);
        window.map_or_else(Counts::default, |window| window.counts(now, SPAN))
    }
}

/// The number by which a window knows what a pod counts of a revision: FNV-1a.
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
    fn what_a_pod_counted_before_it_was_first_asked_does_not_count_whenever_it_answers() {
        let mut own = Attainment::default();
        // Without an answer nothing is known of what there is.
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
        // None is there for a while: nothing is forgotten.
        own.observe(at(5), &[]);
        own.observe(at(6), &both(906, 7_003));
        assert_eq!(judged(&own, 6), 9);
    }

    #[test]
    fn what_comes_later_counts_from_its_begin() {
        let mut own = Attainment::default();
        own.observe(at(1), &pods(&[("a", Some(answer(&[("1", 900)])))]));
        // A revision, and a pod.
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
        // A program that begins anew under the same name counts from 0.
        own.observe(at(4), &two(1));
        assert_eq!(judged(&own, 4), 8);
        assert_eq!(judged(&own, 400), 0);
    }

    #[test]
    fn functions_that_are_gone_are_forgotten_once_all_have_said_so() {
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
