//! Annotations that are allowed each by itself and do not go together.

use crate::keys::PREFIX;
use crate::settings::{Evict, Isolation, Settings};

/// Two settings that do not go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// An objective where any number of requests may be at the user container: none of them waits, so there is nothing to
    /// order.
    #[error("{PREFIX}slo needs containerConcurrency of at least 1, or {PREFIX}concurrency")]
    SloWithoutConcurrency,
    /// A share of a slot that is not shared.
    #[error("{PREFIX}{0}: allowed only with {PREFIX}isolation=\"shared\"")]
    OnlyShared(&'static str),
    /// More time is guaranteed than is allowed.
    #[error("{PREFIX}quota-request: must not be above {PREFIX}quota-limit")]
    RequestAboveLimit,
    /// A model that never leaves a slot on which only one instance's data may be.
    #[error("{PREFIX}evict=\"never\": not allowed with {PREFIX}isolation=\"strict\"")]
    NeverEvictStrict,
}

impl Settings {
    /// Returns what does not go together, but for the objective, which [`slo_without_concurrency`] judges.
    ///
    /// [`slo_without_concurrency`]: Settings::slo_without_concurrency
    #[must_use]
    pub fn contradictions(&self) -> Vec<Contradiction> {
        let mut found = Vec::new();
        if self.isolation != Isolation::Shared {
            let keys = ["quota-limit", "quota-request", "sm-percent"];
            let set = keys.into_iter().filter(|key| self.is_set(key));
            found.extend(set.map(Contradiction::OnlyShared));
        }
        if self.is_set("quota-request") && self.quota_request_ppm > self.quota_limit_ppm {
            found.push(Contradiction::RequestAboveLimit);
        }
        if self.isolation == Isolation::Strict && self.evict == Evict::Never {
            found.push(Contradiction::NeverEvictStrict);
        }
        found
    }

    /// Returns a contradiction if there is an objective and no bound on the requests at the user container.
    /// `container_concurrency`: Knative's bound, if it sets one.
    #[must_use]
    pub fn slo_without_concurrency(
        &self,
        container_concurrency: Option<u32>,
    ) -> Option<Contradiction> {
        let is_unbounded = container_concurrency.or(self.concurrency).is_none();
        (self.slo.is_some() && is_unbounded).then_some(Contradiction::SloWithoutConcurrency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(set: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::default();
        for (key, value) in set {
            settings.set(key, value).unwrap();
        }
        settings
    }

    #[test]
    fn shares_need_a_slot_that_is_shared() {
        for key in ["quota-limit", "quota-request", "sm-percent"] {
            let alone = settings(&[(key, "1")]);
            assert_eq!(alone.contradictions(), [Contradiction::OnlyShared(key)]);
            let shared = settings(&[("isolation", "shared"), (key, "1")]);
            assert_eq!(shared.contradictions(), []);
        }
    }

    #[test]
    fn no_more_is_guaranteed_than_is_allowed() {
        let quota = |request, limit| {
            let set = [
                ("isolation", "shared"),
                ("quota-request", request),
                ("quota-limit", limit),
            ];
            settings(&set).contradictions()
        };
        assert_eq!(quota("0.4", "0.4"), []);
        assert_eq!(quota("0.5", "0.4"), [Contradiction::RequestAboveLimit]);
    }

    #[test]
    fn what_is_strict_can_be_evicted() {
        let set = [("isolation", "strict"), ("evict", "never")];
        assert_eq!(
            settings(&set).contradictions(),
            [Contradiction::NeverEvictStrict]
        );
        assert_eq!(settings(&set[1..]).contradictions(), []);
    }

    #[test]
    fn an_objective_needs_a_bound_on_requests() {
        let slo = settings(&[("slo", "1s")]);
        let found = slo.slo_without_concurrency(None);
        assert_eq!(found, Some(Contradiction::SloWithoutConcurrency));
        assert_eq!(slo.slo_without_concurrency(Some(1)), None);
        let both = settings(&[("slo", "1s"), ("concurrency", "2")]);
        assert_eq!(both.slo_without_concurrency(None), None);
        assert_eq!(settings(&[]).slo_without_concurrency(None), None);
    }
}
