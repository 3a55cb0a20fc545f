//! What admission says of a revision's annotations: the strict reading, key by key.

use std::fmt;

use crate::contradiction::Contradiction;
use crate::keys::PREFIX;
use crate::settings::Settings;

/// So many characters of a key or value are repeated in a refusal.
const SHOWN_CHARS_MAX: usize = 80;

/// An annotation that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Its key, with the [prefix](PREFIX), as it was given.
    pub key: String,
    /// Which, what is wrong with it, and what is allowed.
    pub sentence: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

/// Returns the settings that annotations ask for, and what is refused of them, but for an objective without a bound on
/// requests, which [`objective`] judges. Keys of other domains are not looked at.
pub fn review<'a>(
    annotations: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> (Settings, Vec<Refusal>) {
    let mut settings = Settings::default();
    let mut refusals = Vec::new();
    for (key, value) in annotations {
        let Some(name) = key.strip_prefix(PREFIX) else {
            continue;
        };
        if let Err(why) = settings.set(name, value) {
            let shown = |text: &str| text.chars().take(SHOWN_CHARS_MAX).collect::<String>();
            refusals.push(Refusal {
                key: key.to_owned(),
                sentence: format!("{PREFIX}{}={:?}: {why}", shown(name), shown(value)),
            });
        }
    }
    refusals.extend(settings.contradictions().into_iter().map(Refusal::from));
    (settings, refusals)
}

/// Returns what is refused of an objective; `container_concurrency` is Knative's bound, if it sets one.
#[must_use]
pub fn objective(settings: &Settings, container_concurrency: Option<u32>) -> Option<Refusal> {
    let found = settings.slo_without_concurrency(container_concurrency);
    found.map(Refusal::from)
}

impl From<Contradiction> for Refusal {
    fn from(contradiction: Contradiction) -> Self {
        let name = match contradiction {
            Contradiction::SloWithoutConcurrency => "slo",
            Contradiction::OnlyShared(key) => key,
            Contradiction::RequestAboveLimit => "quota-request",
            Contradiction::NeverEvictStrict => "evict",
        };
        Self {
            key: format!("{PREFIX}{name}"),
            sentence: contradiction.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_its_key() {
        let given = [
            ("other.dev/slo", "never"),
            ("weir.dev/slo", "1s"),
            ("weir.dev/late", "never"),
            ("weir.dev/sm-percent", "50"),
        ];
        let (settings, refusals) = review(given);
        let said: Vec<_> = refusals
            .iter()
            .map(|it| (&*it.key, it.to_string()))
            .collect();
        let late = "weir.dev/late=\"never\": allowed: serve, shed".to_owned();
        let shared =
            "weir.dev/sm-percent: allowed only with weir.dev/isolation=\"shared\"".to_owned();
        assert_eq!(
            said,
            [("weir.dev/late", late), ("weir.dev/sm-percent", shared)]
        );
        assert_eq!(objective(&settings, Some(1)), None);
        assert_eq!(objective(&settings, None).unwrap().key, "weir.dev/slo");
    }
}
