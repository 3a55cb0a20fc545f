//! Strict parsing of a revision's annotations for admission, with one error per key.

use std::fmt;

use crate::contradiction::Contradiction;
use crate::keys::PREFIX;
use crate::settings::Settings;

/// Largest number of characters of a key or value that a refusal quotes.
const SHOWN_CHARS_MAX: usize = 80;

/// A rejected annotation, with its error message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Key as it was given, with the [prefix](PREFIX).
    pub key: String,
    /// Error message: the key, what is wrong with its value, and the allowed values.
    pub sentence: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

/// Parses annotations. Returns the settings and all refusals except that of an objective without a concurrency limit,
/// which [`objective`] checks. Keys of other domains are ignored.
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

/// Returns a refusal if an objective is set without a concurrency limit; `container_concurrency` is Knative's limit, if
/// one is set.
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
    fn every_refusal_names_its_key() {
        let given = [
            ("other.dev/slo", "never"),
            ("weir.dev/slo", "1s"),
            ("weir.dev/late", "never"),
            ("weir.dev/sm-percent", "50"),
        ];
        let (settings, refusals) = review(given);
        let reported: Vec<_> = refusals
            .iter()
            .map(|it| (&*it.key, it.to_string()))
            .collect();
        let late = "weir.dev/late=\"never\": allowed: serve, shed".to_owned();
        let shared =
            "weir.dev/sm-percent: allowed only with weir.dev/isolation=\"shared\"".to_owned();
        assert_eq!(
            reported,
            [("weir.dev/late", late), ("weir.dev/sm-percent", shared)]
        );
        assert_eq!(objective(&settings, Some(1)), None);
        assert_eq!(objective(&settings, None).unwrap().key, "weir.dev/slo");
    }
}
