//! Weir's own options of a revision: annotations `weir.dev/some-key` from podinfo, overridden by environment variables
//! `WEIR_SOME_KEY`.
//!
//! An unusable value never stops the process: it is reported once and its default is used.

use std::fs;
use std::io::Read as _;

use annotations::{KEYS, LenientSettings, podinfo, variable};
use proxy::env::Environment;

/// Path of the annotations file that the kubelet's downward API writes, if Knative mounts podinfo.
pub(crate) const PODINFO_DEFAULT: &str = "/etc/podinfo/annotations";

/// Reads all options. `container_concurrency` is Knative's limit, if one is set.
pub(crate) fn read(
    environment: &impl Environment,
    container_concurrency: Option<u32>,
) -> LenientSettings {
    let mut options = LenientSettings::default();
    match environment.get("WEIR_DISABLED").as_deref() {
        Some("true" | "1" | "TRUE" | "True" | "t" | "T") => return options,
        None | Some("" | "false" | "0" | "FALSE" | "False" | "f" | "F") => {}
        Some(other) => {
            options
                .problems
                .push(format!("WEIR_DISABLED={other:?}: allowed: true, false"));
        }
    }
    let path = environment
        .get("WEIR_PODINFO")
        .unwrap_or_else(|| PODINFO_DEFAULT.to_owned());
    if let Some(text) = read_podinfo(&path, &mut options.problems) {
        let (annotations, bad) = podinfo::parse(&text);
        options
            .problems
            .extend(bad.iter().map(|bad| format!("{path}: {bad}")));
        for (key, value) in annotations {
            options.set_annotation(key, &value, &path);
        }
    }
    for key in KEYS {
        let name = variable(key);
        if let Some(value) = environment.get(&name) {
            options.set(key.name, &value, || format!("{name}={value:?}"));
        }
    }
    options.resolve(container_concurrency);
    // Conflicts among the GPU options are only reported here; the agent refuses them.
    let others = options.contradictions();
    let others = others.iter().map(ToString::to_string);
    options.problems.extend(others);
    options
}

fn read_podinfo(path: &str, problems: &mut Vec<String>) -> Option<String> {
    let mut text = String::new();
    let read = fs::File::open(path)
        .and_then(|file| file.take(podinfo::SIZE_MAX + 1).read_to_string(&mut text));
    match read {
        Ok(size) if size as u64 > podinfo::SIZE_MAX => {
            problems.push(format!(
                "{path}: larger than {} bytes; ignored",
                podinfo::SIZE_MAX
            ));
            None
        }
        Ok(_) => Some(text),
        // Knative only mounts podinfo if it is configured to.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            problems.push(format!("{path}: {error}; ignored"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::gate::Late;
    use policy::slo::Trust;
    use proxy::limits::Limits;
    use proxy::settings;
    use std::collections::BTreeMap;
    use std::io::Write as _;
    use std::time::Duration;

    fn read_with(podinfo: &str, variables: &[(&'static str, &str)]) -> LenientSettings {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(podinfo.as_bytes()).unwrap();
        let mut environment: BTreeMap<&str, String> = variables
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        environment.insert("WEIR_PODINFO", file.path().to_str().unwrap().to_owned());
        read(&environment, Some(1))
    }

    #[test]
    fn a_revision_without_options_has_not_opted_in() {
        let options = read_with("other.dev/key=\"1\"\n", &[]);
        assert!(!options.opted_in() && options.problems.is_empty());
        assert_eq!(
            read(
                &BTreeMap::from([("WEIR_PODINFO", "/nonexistent".to_owned())]),
                None
            ),
            LenientSettings::default()
        );
    }

    #[test]
    fn the_environment_overrides_annotations() {
        let options = read_with(
            "weir.dev/slo=\"200ms\"\nweir.dev/late=\"shed\"\nweir.dev/queue-depth=\"7\"\n",
            &[("WEIR_SLO", "1m30s")],
        );
        assert!(options.opted_in());
        assert_eq!(options.slo, Some(Duration::from_secs(90)));
        assert_eq!(settings::late(&options), Late::Shed);
        assert_eq!(options.queue_depth, Some(7));
    }

    #[test]
    fn trust_in_budgets_is_an_option() {
        let trust = |variables: &[(&'static str, &str)]| {
            let options = read_with("weir.dev/trust-budget=\"none\"\n", variables);
            assert!(options.opted_in());
            (settings::trust(&options), options.problems)
        };
        assert_eq!(trust(&[]), (Trust::None, Vec::new()));
        for (value, expected) in [
            ("all", Trust::All),
            ("floor", Trust::Floor),
            ("none", Trust::None),
        ] {
            let variables = [("WEIR_TRUST_BUDGET", value)];
            assert_eq!(trust(&variables), (expected, Vec::new()));
        }
        let (kept, problems) = trust(&[("WEIR_TRUST_BUDGET", "some")]);
        assert_eq!(kept, Trust::None);
        assert!(problems[0].contains("allowed: all, floor, none"));
        assert_eq!(settings::trust(&LenientSettings::default()), Trust::All);
    }

    #[test]
    fn limits_are_applied_without_opting_in() {
        let options = read_with(
            "weir.dev/limit-streams=\"7\"\nweir.dev/limit-head-time=\"2m\"\n",
            &[("WEIR_LIMIT_HEAD_LINES", "100")],
        );
        assert!(!options.opted_in());
        assert_eq!(
            (
                settings::limits(&options).streams,
                settings::limits(&options).head_lines
            ),
            (7, 100)
        );
        assert_eq!(
            settings::limits(&options).head_time,
            Limits::default().head_time
        );
        assert_eq!(options.problems.len(), 1, "{:?}", options.problems);
        assert!(options.problems[0].contains("allowed: a duration from 1s to 60s"));
    }

    #[test]
    fn weir_disabled_turns_all_options_off() {
        let options = read_with(
            "weir.dev/slo=\"200ms\"\nweir.dev/limit-streams=\"7\"\n",
            &[("WEIR_DISABLED", "true")],
        );
        assert_eq!(options, LenientSettings::default());
    }

    #[test]
    fn unusable_values_are_reported_and_keep_the_default() {
        let options = read_with(
            "weir.dev/late=\"never\"\nweir.dev/queue-depth=\"10001\"\nweir.dev/slos=\"1s\"\nnonsense\n",
            &[],
        );
        assert_eq!(settings::late(&options), Late::Serve);
        assert_eq!(options.queue_depth, None);
        assert!(!options.opted_in());
        assert_eq!(options.problems.len(), 4, "{:?}", options.problems);
        assert!(
            options
                .problems
                .iter()
                .any(|p| p.contains("allowed: a whole number from 1 to 10000"))
        );
    }

    #[test]
    fn an_objective_without_a_concurrency_limit_is_reported_and_dropped() {
        let environment = BTreeMap::from([("WEIR_SLO", "1s".to_owned())]);
        let options = read(&environment, None);
        assert_eq!(options.slo, None);
        assert!(options.problems[0].contains("slo needs containerConcurrency of at least 1"));
        let environment = BTreeMap::from([
            ("WEIR_SLO", "1s".to_owned()),
            ("WEIR_CONCURRENCY", "2".to_owned()),
        ]);
        assert_eq!(read(&environment, None).slo, Some(Duration::from_secs(1)));
    }

    #[test]
    fn the_largest_allowed_limits_are_the_defaults() {
        let most = Limits {
            head_bytes: annotations::HEAD_BYTES_MAX,
            head_lines: annotations::HEAD_LINES_MAX,
            head_time: annotations::HEAD_TIME_MAX,
            streams: annotations::STREAMS_MAX,
            buffered_bytes: annotations::BUFFERED_BYTES_MAX,
        };
        assert_eq!(settings::limits(&LenientSettings::default()), most);
        assert_eq!(Limits::default(), most);
    }

    #[test]
    fn conflicting_gpu_options_are_reported() {
        let options = read_with("weir.dev/sm-percent=\"50\"\n", &[]);
        let only_shared = "weir.dev/sm-percent: allowed only with weir.dev/isolation=\"shared\"";
        assert_eq!(options.problems, [only_shared]);
        assert!(options.opted_in());
    }
}
