//! The keys, and which part of Weir acts on each.

/// The domain of Weir's annotations.
pub const PREFIX: &str = "weir.dev/";

/// What a key is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The order in which requests are served, and by whom: a function without a GPU may have it.
    Queue,
    /// The GPU: such a pod needs an agent.
    Gpu,
    /// What one client may take of queue-proxy. It only tightens, and opts nothing in.
    Limit,
}

/// A key without its [prefix](PREFIX).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it is about.
    pub part: Part,
}

const fn key(name: &'static str, part: Part) -> Key {
    Key { name, part }
}

/// All keys, by name.
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

/// Returns the variable of the environment that stands for a key: `WEIR_SOME_KEY` for `some-key`.
#[must_use]
pub fn variable(key: Key) -> String {
    format!("WEIR_{}", key.name.replace('-', "_").to_uppercase())
}

/// The names of all keys, separated by commas.
pub(crate) fn names() -> String {
    KEYS.map(|key| key.name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_order_and_no_two_are_alike() {
        assert!(KEYS.is_sorted_by(|a, b| a.name < b.name));
    }

    #[test]
    fn a_key_that_is_about_limits_begins_so() {
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
