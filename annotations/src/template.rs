//! Review of a revision's template for admission: its annotations, and the other fields that they depend on.

use crate::review::{Refusal, objective, review};
use crate::settings::{Evict, Settings};

/// Shortest recommended time until a liveness probe fails, in seconds, where a model may be evicted (contracts §7).
pub const LIVENESS_MIN_SECS: u64 = 30;

/// The fields of a revision's template that admission reviews.
#[derive(Debug, Default)]
pub struct Template<'a> {
    /// Annotations as pairs of key and value; keys of other domains are ignored.
    pub annotations: Vec<(&'a str, &'a str)>,
    /// Knative's concurrency limit at the user container; `None` or 0 without a limit.
    pub container_concurrency: Option<u32>,
    /// Time until each liveness probe fails, in seconds: `timeoutSeconds` × `failureThreshold`.
    pub liveness: Vec<u64>,
}

/// Result of reviewing a [`Template`].
#[derive(Debug, Default)]
pub struct Review {
    /// Settings that the annotations state.
    pub settings: Settings,
    /// Rejected annotations; the template is admitted if there are none.
    pub refusals: Vec<Refusal>,
    /// Indices in [`Template::liveness`] of the probes that may fail during an eviction; they cause warnings.
    pub short_probes: Vec<usize>,
}

impl Template<'_> {
    /// Reviews the template and returns its settings, refusals and warnings.
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

/// Returns the warning about a liveness probe that fails after `seconds`.
#[must_use]
pub fn short_probe(seconds: u64) -> String {
    format!(
        "the liveness probe fails after {seconds} s (timeoutSeconds × failureThreshold): a process may not answer while \
         its model is evicted; allowed: {LIVENESS_MIN_SECS} s and more, or weir.dev/evict: never"
    )
}

/// Returns the warning about a key on an object whose annotations are not passed on to any revision.
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
    fn a_concurrency_of_zero_is_no_limit() {
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
    fn short_liveness_probes_are_reported_only_where_the_model_may_be_evicted() {
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
