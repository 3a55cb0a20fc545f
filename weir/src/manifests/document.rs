//! The documents of a manifest, as far as admission inspects them, with line numbers of their annotations.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_saphyr::Spanned;

/// API group of Knative Serving, with its separator.
const GROUP: &str = "serving.knative.dev/";

/// Annotations by key, each with its line number.
pub(super) type Annotations = BTreeMap<String, (u64, Value)>;

/// A Knative Service, Configuration or Revision.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) kind: String,
    /// Annotations of the object itself; empty for a Revision, where they are the template's.
    pub(super) own: Annotations,
    /// Revision template; `None` for a Service without one.
    pub(super) template: Option<Template>,
}

/// Parts of a revision template which admission inspects.
#[derive(Debug)]
pub(super) struct Template {
    pub(super) annotations: Annotations,
    /// `containerConcurrency`; `None` if it is not set.
    pub(super) container_concurrency: Option<u32>,
    /// For each liveness probe, the seconds until it gives up, and its line.
    pub(super) liveness: Vec<(u64, u64)>,
}

/// Fields to recognize a document of any kind.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Head {
    api_version: Option<String>,
    kind: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Object {
    #[serde(deserialize_with = "null_is_default")]
    metadata: Metadata,
    #[serde(deserialize_with = "null_is_default")]
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    #[serde(deserialize_with = "null_is_default")]
    annotations: BTreeMap<String, Spanned<Value>>,
}

/// Spec of any of the kinds: a Service's and a Configuration's has a template, a Revision's has the fields of a template's.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    template: Option<Box<Object>>,
    container_concurrency: Option<u32>,
    #[serde(deserialize_with = "null_is_default")]
    containers: Vec<Container>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    liveness_probe: Option<Spanned<Probe>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Probe {
    timeout_seconds: Option<u64>,
    failure_threshold: Option<u64>,
}

fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Document {
    /// Parses the Knative objects of a file.
    ///
    /// # Errors
    /// The line of the first unreadable document, and the reason.
    pub(super) fn read(text: &str) -> Result<Vec<Self>, (u64, String)> {
        let mut found = Vec::new();
        for (before, part) in parts(text) {
            // A document of comments only is skipped.
            let is_empty = part
                .lines()
                .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
            if is_empty {
                continue;
            }
            let wrong = |error: serde_saphyr::Error| {
                let error = error.without_snippet();
                let line = error.location().map_or(1, |location| location.line());
                let message = error.to_string();
                let why = message.split_once(": ").map_or(&*message, |(_, why)| why);
                (
                    before + line,
                    why.lines().next().unwrap_or_default().to_owned(),
                )
            };
            let head: Head = serde_saphyr::from_str(part).map_err(wrong)?;
            let kind = head.kind.unwrap_or_default();
            let is_knatives = head.api_version.is_some_and(|it| it.starts_with(GROUP));
            if !is_knatives || !matches!(&*kind, "Service" | "Configuration" | "Revision") {
                continue;
            }
            let object: Object = serde_saphyr::from_str(part).map_err(wrong)?;
            found.push(Self::of(kind, object, before));
        }
        Ok(found)
    }

    fn of(kind: String, mut object: Object, before: u64) -> Self {
        if kind == "Revision" {
            let template = Some(Template::of(object, before));
            return Self {
                kind,
                own: Annotations::new(),
                template,
            };
        }
        let template = object.spec.template.take();
        Self {
            kind,
            own: lines(object.metadata, before),
            template: template.map(|template| Template::of(*template, before)),
        }
    }
}

impl Template {
    fn of(object: Object, before: u64) -> Self {
        let probes = object
            .spec
            .containers
            .iter()
            .filter_map(|it| it.liveness_probe.as_ref());
        let liveness = probes.map(|probe| {
            let Probe {
                timeout_seconds,
                failure_threshold,
            } = probe.value;
            // Kubernetes' defaults apply.
            let seconds = timeout_seconds
                .unwrap_or(1)
                .saturating_mul(failure_threshold.unwrap_or(3));
            (before + probe.referenced.line(), seconds)
        });
        Self {
            liveness: liveness.collect(),
            container_concurrency: object.spec.container_concurrency.filter(|&limit| limit > 0),
            annotations: lines(object.metadata, before),
        }
    }
}

fn lines(metadata: Metadata, before: u64) -> Annotations {
    let each = metadata.annotations.into_iter();
    each.map(|(key, value)| (key, (before + value.referenced.line(), value.value)))
        .collect()
}

/// Returns the YAML documents of a file, each with the number of lines before it.
fn parts(text: &str) -> Vec<(u64, &str)> {
    let mut parts = Vec::new();
    let (mut begin, mut before) = (0, 0);
    let mut at = 0;
    for (number, line) in (1_u64..).zip(text.split_inclusive('\n')) {
        at += line.len();
        // At the left margin `---` can only be a separator.
        if line.trim_end() == "---" || line.starts_with("--- ") {
            parts.push((before, &text[begin..at - line.len()]));
            (begin, before) = (at, number);
        }
    }
    parts.push((before, &text[begin..]));
    parts
}
