//! Lenient parsing, for programs that serve an existing pod: an invalid annotation is reported and keeps its default.

use std::ops::{Deref, DerefMut};

use crate::keys::PREFIX;
use crate::settings::{SettingError, Settings};

/// Settings, with the problems that were found while reading them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LenientSettings {
    settings: Settings,
    /// One message for each unusable value, with its location; to be logged once.
    pub problems: Vec<String>,
}

impl Deref for LenientSettings {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.settings
    }
}

impl DerefMut for LenientSettings {
    fn deref_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }
}

impl LenientSettings {
    /// Applies the value of a key, which is given without its prefix. If the value is invalid, the default stays and a
    /// problem is recorded, for which `place` returns the location of the value.
    pub fn set(&mut self, key: &str, value: &str, place: impl Fn() -> String) {
        let problem = match self.settings.set(key, value) {
            Ok(()) => return,
            Err(SettingError::Key) => format!("{}: {}", place(), SettingError::Key),
            Err(why) => format!("{}: {why}; the default holds", place()),
        };
        self.problems.push(problem);
    }

    /// Applies an annotation, and ignores it if its key has another domain than Weir's. `file` is the path it was read
    /// from, for problem messages, or empty.
    pub fn set_annotation(&mut self, key: &str, value: &str, file: &str) {
        if let Some(name) = key.strip_prefix(PREFIX) {
            let separator = if file.is_empty() { "" } else { ": " };
            self.set(name, value, || format!("{file}{separator}{key}={value:?}"));
        }
    }

    /// Drops an objective that is set without a concurrency limit, and records a problem. Call it once all keys are
    /// applied; `container_concurrency` is Knative's limit, if one is set.
    pub fn resolve(&mut self, container_concurrency: Option<u32>) {
        if let Some(contradiction) = self.slo_without_concurrency(container_concurrency) {
            self.problems.push(format!("{contradiction}; ignored"));
            self.settings.slo = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn unusable_values_are_reported_with_their_location_and_the_rest_applies() {
        let mut settings = LenientSettings::default();
        settings.set_annotation("other.dev/slo", "1s", "f");
        settings.set_annotation("weir.dev/slo", "1s", "f");
        settings.set_annotation("weir.dev/late", "never", "f");
        settings.set_annotation("weir.dev/slos", "1s", "");
        settings.resolve(Some(1));
        assert_eq!(settings.slo, Some(Duration::from_secs(1)));
        let late = "f: weir.dev/late=\"never\": allowed: serve, shed; the default holds";
        assert_eq!(settings.problems[0], late);
        assert!(settings.problems[1].starts_with("weir.dev/slos=\"1s\": is not a known key;"));
        assert_eq!(settings.problems.len(), 2);
    }

    #[test]
    fn an_objective_without_a_limit_is_dropped() {
        let mut settings = LenientSettings::default();
        settings.set_annotation("weir.dev/slo", "1s", "");
        settings.resolve(None);
        assert_eq!(settings.slo, None);
        assert!(settings.problems[0].ends_with("; ignored"));
    }
}
