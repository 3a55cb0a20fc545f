//! What admission says of a revision's template: of its annotations, and of what else in it they have to do with.

use crate::review::{Refusal, objective, review};
use crate::settings::{Evict, Settings};

/// A liveness probe is to give up no sooner, in seconds, where a model may be evicted (design §4.7).
pub const LIVENESS_MIN_SECS: u64 = 30;

/// A revision's template, as far as admission looks at it.
#[derive(Debug, Default)]
pub struct Template<'a> {
    /// Keys and values; those of other domains are not looked at.
    pub annotations: Vec<(&'a str, &'a str)>,
    /// Knative's bound on requests at the user container; `None` or 0: none.
    pub container_concurrency: Option<u32>,
    /// Seconds until each liveness probe gives up: `timeoutSeconds` × `failureThreshold`.
    pub liveness: Vec<u64>,
}

/// What admission says of a template.
#[derive(Debug, Default)]
pub struct Review {
    /// What the annotations ask for.
    pub settings: Settings,
    /// What is refused.
    pub refusals: Vec<Refusal>,
    /// Positions in [`Template::liveness`] of the probes that eviction would trip. They are warned of.
    pub short_probes: Vec<usize>,
}

impl Template<'_> {
    /// Returns what admission says of it.
    #[must_use]
    pub fn review(&self) -> Review {
        let (settings, mut refusals) = review(self.annotations.iter().copied());
        let bound = self.container_concurrency.filter(|&bound| bound > 0);
        refusals.extend(objective(&settings, bound));
        let may_be_evicted = settings.uses_gpu() && settings.evict == Evict::Host;
        let probes = self.liveness.iter().enumerate();
        let short = probes.filter(|(_, seconds)| may_be_evicted && **seconds < LIVENESS_MIN_SECS);
        Review {
            short_probes: short.map(|(position, _)| position).collect(),
            settings,
            refusals,
        }
    }
}

/// Returns the warning of a liveness probe that gives up after so many seconds.
#[must_use]
pub fn short_probe(seconds: u64) -> String {
    format!(
        "the liveness probe gives up after {seconds} s (timeoutSeconds × failureThreshold): while its model is evicted \
         a process may not answer; allowed: {LIVENESS_MIN_SECS} s and more, or weir.dev/evict: never"
    )
}

/// Returns the warning of a key that stands on an object whose annotations reach no revision.
#[must_use]
pub fn misplaced_key(key: &str, kind: &str) -> String {
    format!(
        "{key} on the {kind} itself reaches no revision: put it on spec.template.metadata.annotations"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bound_on_requests_is_the_same_as_a_bound_of_zero() {
        let refused = |container_concurrency| {
            let template = Template {
                annotations: vec![("weir.dev/slo", "1s")],
                container_concurrency,
                ..Template::default()
            };
            !template.review().refusals.is_empty()
        };
        assert!(refused(None) && refused(Some(0)));
        assert!(!refused(Some(1)));
    }

    #[test]
    fn probes_that_give_up_early_matter_where_a_model_may_be_evicted() {
        let short = |annotations: &[(&'static str, &'static str)]| {
            let template = Template {
                annotations: annotations.to_vec(),
                liveness: vec![30, 3],
                ..Template::default()
            };
            template.review().short_probes
        };
        assert_eq!(short(&[("weir.dev/gpu-memory", "1Gi")]), [1]);
        assert!(short(&[("weir.dev/late", "shed")]).is_empty());
        assert!(short(&[("weir.dev/evict", "never")]).is_empty());
    }
}
