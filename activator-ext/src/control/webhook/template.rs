//! The validating webhook for a Knative Service, Configuration or Revision: strict parsing of `weir.dev/` annotations,
//! of which only changed ones are refused.

use annotations::review::Refusal;
use annotations::template::{Review, Template, misplaced_key, short_probe};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;

/// The result of a review.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Reasons to refuse the object; empty if it is allowed.
    pub(super) refusals: Vec<String>,
    /// Warnings returned to the user.
    pub(super) warnings: Vec<String>,
}

/// Returns the verdict on `new`, which replaces `old` if there is one.
pub(super) fn judge(kind: &str, old: Option<&DynamicObject>, new: &DynamicObject) -> Verdict {
    // An object that is being deleted may be updated, whatever its annotations.
    if new.metadata.deletion_timestamp.is_some() {
        return Verdict::default();
    }
    let mut verdict = Verdict::default();
    let had = |key: &str| old.is_some_and(|old| old.annotations().contains_key(key));
    if kind != "Revision" {
        let keys = new.annotations().keys();
        let own = keys.filter(|key| key.starts_with(annotations::PREFIX) && !had(key));
        verdict
            .warnings
            .extend(own.map(|key| misplaced_key(key, kind)));
    }
    let Some((review, probes)) = review(kind, new) else {
        return verdict;
    };
    let before = old.and_then(|old| review_of_old(kind, old));
    for refusal in review.refusals {
        if before
            .as_ref()
            .is_some_and(|before| before.contains(&refusal))
        {
            let sentence = refusal.sentence;
            verdict.warnings.push(format!("as before: {sentence}"));
        } else {
            verdict.refusals.push(refusal.sentence);
        }
    }
    let short = review
        .short_probes
        .iter()
        .filter_map(|&at| probes.get(at).copied());
    verdict.warnings.extend(short.map(short_probe));
    verdict
}

fn review_of_old(kind: &str, old: &DynamicObject) -> Option<Vec<Refusal>> {
    review(kind, old).map(|(review, _)| review.refusals)
}

/// Returns the review of an object's template, and for each liveness probe the seconds after which it fails.
fn review(kind: &str, object: &DynamicObject) -> Option<(Review, Vec<u64>)> {
    let (annotations, spec): (Vec<(&str, &str)>, &Value) = if kind == "Revision" {
        let own = object.annotations().iter();
        let own = own.map(|(key, value)| (key.as_str(), value.as_str()));
        (own.collect(), object.data.get("spec")?)
    } else {
        let template = object.data.pointer("/spec/template")?;
        let annotations = template
            .pointer("/metadata/annotations")
            .and_then(Value::as_object);
        let annotations = annotations.into_iter().flatten();
        let annotations = annotations.filter_map(|(key, value)| Some((&**key, value.as_str()?)));
        (annotations.collect(), template.get("spec")?)
    };
    let probes = probes(spec);
    let bound = spec["containerConcurrency"].as_u64();
    let template = Template {
        annotations,
        container_concurrency: bound.map(|bound| u32::try_from(bound).unwrap_or(u32::MAX)),
        liveness: probes.clone(),
    };
    Some((template.review(), probes))
}

fn probes(spec: &Value) -> Vec<u64> {
    let containers = spec["containers"].as_array();
    let probes = containers.into_iter().flatten();
    let probes = probes.filter_map(|container| container.get("livenessProbe"));
    let number = |probe: &Value, key: &str, default| match probe[key].as_u64() {
        // Knative writes 0 for a missing number.
        None | Some(0) => default,
        Some(number) => number,
    };
    // The defaults of Kubernetes.
    probes
        .filter(|probe| !probe.is_null())
        .map(|probe| {
            number(probe, "timeoutSeconds", 1).saturating_mul(number(probe, "failureThreshold", 3))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service(annotations: Value, concurrency: u32) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "serving.knative.dev/v1", "kind": "Service",
            "metadata": { "name": "hello", "namespace": "default" },
            "spec": { "template": {
                "metadata": { "annotations": annotations },
                "spec": {
                    "containerConcurrency": concurrency,
                    "containers": [{ "image": "hello", "livenessProbe": { "timeoutSeconds": 0, "failureThreshold": 3 } }],
                },
            } },
        }))
        .unwrap()
    }

    #[test]
    fn only_what_has_changed_is_refused() {
        let wrong = service(json!({ "weir.dev/late": "never" }), 1);
        let sentence = "weir.dev/late=\"never\": allowed: serve, shed";
        assert_eq!(judge("Service", None, &wrong).refusals, [sentence]);
        let also = service(
            json!({ "weir.dev/late": "never", "weir.dev/slo": "soon" }),
            1,
        );
        let verdict = judge("Service", Some(&wrong), &also);
        assert_eq!(verdict.refusals.len(), 1);
        assert!(
            verdict.refusals[0].starts_with("weir.dev/slo=\"soon\""),
            "{verdict:?}"
        );
        assert_eq!(verdict.warnings, [format!("as before: {sentence}")]);
    }

    #[test]
    fn an_objective_without_a_bound_is_refused_when_the_bound_goes() {
        let with = service(json!({ "weir.dev/slo": "1s" }), 1);
        let without = service(json!({ "weir.dev/slo": "1s" }), 0);
        assert!(judge("Service", None, &with).refusals.is_empty());
        assert_eq!(judge("Service", Some(&with), &without).refusals.len(), 1);
    }

    #[test]
    fn a_key_on_the_service_itself_and_a_short_probe_cause_warnings() {
        let mut object = service(json!({ "weir.dev/gpu-memory": "1Gi" }), 1);
        object
            .annotations_mut()
            .insert("weir.dev/slo".to_owned(), "1s".to_owned());
        let verdict = judge("Service", None, &object);
        assert!(verdict.refusals.is_empty());
        assert_eq!(verdict.warnings.len(), 2, "{verdict:?}");
        assert!(verdict.warnings[0].contains("spec.template.metadata.annotations"));
        assert!(verdict.warnings[1].contains("fails after 3 s"));
    }

    #[test]
    fn a_revision_is_its_own_template() {
        let revision = serde_json::from_value(json!({
            "apiVersion": "serving.knative.dev/v1", "kind": "Revision",
            "metadata": { "name": "r", "namespace": "default", "annotations": { "weir.dev/color": "red" } },
            "spec": { "containers": [] },
        }))
        .unwrap();
        let verdict = judge("Revision", None, &revision);
        assert!(
            verdict.refusals[0].contains("weir.dev/color"),
            "{verdict:?}"
        );
        assert!(verdict.warnings.is_empty());
    }

    #[test]
    fn an_object_that_is_being_deleted_is_allowed() {
        let mut wrong = service(json!({ "weir.dev/late": "never" }), 1);
        wrong.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(judge("Service", None, &wrong), Verdict::default());
    }
}
