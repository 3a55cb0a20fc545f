//! Combinations of annotations that are valid one by one but conflict with each other.

use crate::keys::PREFIX;
use crate::settings::{Evict, Isolation, Settings};

/// Two settings that conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// An objective without a concurrency limit at the user container: no request ever waits, so there is no queue to
    /// order.
    #[error("{PREFIX}slo needs containerConcurrency of at least 1, or {PREFIX}concurrency")]
    SloWithoutConcurrency,
    /// A quota or SM share, named by its key without the prefix, on a slot that is not shared.
    #[error("{PREFIX}{0}: allowed only with {PREFIX}isolation=\"shared\"")]
    OnlyShared(&'static str),
    /// A guaranteed share of device time (`quota-request`) above the allowed one (`quota-limit`).
    #[error("{PREFIX}quota-request: must not be above {PREFIX}quota-limit")]
    RequestAboveLimit,
    /// A model that must not be evicted, on a slot which holds the data of only one instance at a time.
    #[error("{PREFIX}evict=\"never\": not allowed with {PREFIX}isolation=\"strict\"")]
    NeverEvictStrict,
}

impl Settings {
    /// Returns all conflicts except that of the objective, which [`slo_without_concurrency`] checks.
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

    /// Returns a contradiction if an objective is set without a concurrency limit at the user container.
    /// `container_concurrency` is Knative's limit, if one is set.
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
    fn shares_require_a_shared_slot() {
        for key in ["quota-limit", "quota-request", "sm-percent"] {
            let alone = settings(&[(key, "1")]);
            assert_eq!(alone.contradictions(), [Contradiction::OnlyShared(key)]);
            let shared = settings(&[("isolation", "shared"), (key, "1")]);
            assert_eq!(shared.contradictions(), []);
        }
    }

    #[test]
    fn the_guaranteed_share_must_not_exceed_the_limit() {
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
    fn strict_isolation_requires_eviction() {
        let set = [("isolation", "strict"), ("evict", "never")];
        assert_eq!(
            settings(&set).contradictions(),
            [Contradiction::NeverEvictStrict]
        );
        assert_eq!(settings(&set[1..]).contradictions(), []);
    }

    #[test]
    fn an_objective_requires_a_concurrency_limit() {
        let slo = settings(&[("slo", "1s")]);
        let found = slo.slo_without_concurrency(None);
        assert_eq!(found, Some(Contradiction::SloWithoutConcurrency));
        assert_eq!(slo.slo_without_concurrency(Some(1)), None);
        let both = settings(&[("slo", "1s"), ("concurrency", "2")]);
        assert_eq!(both.slo_without_concurrency(None), None);
        assert_eq!(settings(&[]).slo_without_concurrency(None), None);
    }
}
