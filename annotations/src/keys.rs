//! Annotation keys, and the part of Weir that acts on each.

/// Prefix of all of Weir's annotation keys: its domain and a slash.
pub const PREFIX: &str = "weir.dev/";

/// Part of Weir to which a key applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Ordering and routing of requests; valid for functions without a GPU as well.
    Queue,
    /// GPU allocation and sharing; a pod with such a key needs an agent on its node.
    Gpu,
    /// Resource limits for one client of queue-proxy. Such keys only tighten limits and do not opt the revision in.
    Limit,
}

/// An annotation key, without its [prefix](PREFIX).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Name without the prefix, as in `queue-depth`.
    pub name: &'static str,
    /// Part of Weir that acts on the key.
    pub part: Part,
}

const fn key(name: &'static str, part: Part) -> Key {
    Key { name, part }
}

/// All known keys, sorted by name.
pub const KEYS: [Key; 23] = [
    key("concurrency", Part::Queue),
    key("evict", Part::Gpu),
    key("function", Part::Queue),
    key("gpu-memory", Part::Gpu),
    key("isolation", Part::Gpu),
    key("keep-alive", Part::Queue),
    key("late", Part::Queue),
    key("limit-buffered-bytes", Part::Limit),
    key("limit-head-bytes", Part::Limit),
    key("limit-head-lines", Part::Limit),
    key("limit-head-time", Part::Limit),
    key("limit-streams", Part::Limit),
    key("mid-stream-timeout", Part::Queue),
    key("queue-depth", Part::Queue),
    key("quota-limit", Part::Gpu),
    key("quota-request", Part::Gpu),
    key("skip-containers", Part::Queue),
    key("slo", Part::Queue),
    key("slo-percentile", Part::Queue),
    key("sm-percent", Part::Gpu),
    key("trust-budget", Part::Queue),
    key("variant", Part::Gpu),
    key("version", Part::Queue),
];

/// Returns the environment variable that overrides a key: `WEIR_SOME_KEY` for `some-key`.
#[must_use]
pub fn variable(key: Key) -> String {
    format!("WEIR_{}", key.name.replace('-', "_").to_uppercase())
}

/// Returns the names of all keys, separated by commas, for error messages.
pub(crate) fn names() -> String {
    KEYS.map(|key| key.name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_and_unique() {
        assert!(KEYS.is_sorted_by(|a, b| a.name < b.name));
    }

    #[test]
    fn exactly_the_limit_keys_begin_with_limit() {
        for key in KEYS {
            let is_limit = key.part == Part::Limit;
            assert_eq!(is_limit, key.name.starts_with("limit-"), "{}", key.name);
        }
    }

    #[test]
    fn variables_are_named_after_keys() {
        let named = |name| KEYS.into_iter().find(|key| key.name == name);
        let key = named("mid-stream-timeout").unwrap();
        assert_eq!(variable(key), "WEIR_MID_STREAM_TIMEOUT");
    }
}
