//! The lenient reading: a program that serves a pod which is there already serves it, whatever its annotations are.

use std::ops::{Deref, DerefMut};

use crate::keys::PREFIX;
use crate::settings::{SettingError, Settings};

/// Settings, and what could not be used of what they were read from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LenientSettings {
    settings: Settings,
    /// One sentence for each value that cannot be used, with its place; to be logged once.
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
    /// Sets what a key, without its prefix, asks for. The default holds where the value cannot be used; `place` says where
    /// it stands then.
    pub fn set(&mut self, key: &str, value: &str, place: impl Fn() -> String) {
        let problem = match self.settings.set(key, value) {
            Ok(()) => return,
            Err(SettingError::Key) => format!("{}: {}", place(), SettingError::Key),
            Err(why) => format!("{}: {why}; the default holds", place()),
        };
        self.problems.push(problem);
    }

    /// Sets what an annotation asks for, if it is one of Weir's. `file`: where it was read, or empty.
    pub fn set_annotation(&mut self, key: &str, value: &str, file: &str) {
        if let Some(name) = key.strip_prefix(PREFIX) {
            let separator = if file.is_empty() { "" } else { ": " };
            self.set(name, value, || format!("{file}{separator}{key}={value:?}"));
        }
    }

    /// Drops an objective that has no concurrency limit to go with it. To be called once all keys are set;
    /// `container_concurrency` is Knative's limit, if it has one.
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
    fn what_cannot_be_used_is_named_with_its_place_and_the_rest_holds() {
        let mut settings = LenientSettings::default();
        settings.set_annotation("other.dev/slo", "1s", "f");
        settings.set_annotation("weir.dev/slo", "1s", "f");
        settings.set_annotation("weir.dev/late", "never", "f");
        settings.set_annotation("weir.dev/slos", "1s", "");
        settings.resolve(Some(1));
        assert_eq!(settings.slo, Some(Duration::from_secs(1)));
        let late = "f: weir.dev/late=\"never\": allowed: serve, shed; the default holds";
        assert_eq!(settings.problems[0], late);
        assert!(settings.problems[1].starts_with("weir.dev/slos=\"1s\": is no key of Weir;"));
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
