//! Kubernetes objects for scraping Weir, alerting on it and showing its dashboards.

use std::fmt::Write as _;

use crate::boards::boards;
use crate::catalogue::{Kind, Metric, Program};
use crate::rules::{alerts, alerts_yaml, records, records_yaml};

const WRITTEN: &str = "# Written by `cargo run -p dashboards -- write`.\n";

/// Folder of the dashboards, relative to this crate: Grafana's provisioning folder.
pub const PROVISIONED: &str = "provisioning/dashboards/weir";

fn config_map(uid: &str) -> String {
    format!("{uid}-dashboard")
}

/// Returns `kustomization.yaml` of this crate's folder: a ConfigMap for each dashboard, with the label that Grafana's
/// sidecar selects.
#[must_use]
pub fn config_maps() -> String {
    let mut text = format!(
        "{WRITTEN}# ConfigMaps for the dashboards, which Grafana's sidecar finds by their label.\n\
         apiVersion: kustomize.config.k8s.io/v1alpha1\n\
         kind: Component\n\
         generatorOptions:\n  \
         disableNameSuffixHash: true\n  \
         labels: {{ grafana_dashboard: \"1\", app.kubernetes.io/part-of: weir }}\n  \
         annotations: {{ grafana_folder: Weir }}\n\
         configMapGenerator:\n"
    );
    for board in boards() {
        let uid = board.uid;
        let _infallible = writeln!(
            text,
            "- {{ name: {}, namespace: weir-system, files: [{PROVISIONED}/{uid}.json] }}",
            config_map(uid)
        );
    }
    text
}

/// Returns the configuration of Grafana's provider for provisioned dashboards.
#[must_use]
pub fn provider() -> String {
    format!(
        "{WRITTEN}apiVersion: 1\n\
         providers:\n\
         - name: weir\n  \
           folder: Weir\n  \
           type: file\n  \
           disableDeletion: true\n  \
           allowUiUpdates: false\n  \
           options:\n    \
             path: /etc/grafana/provisioning/dashboards/weir\n"
    )
}

/// Returns the GrafanaDashboard objects of the Grafana Operator.
#[must_use]
pub fn grafana_operator() -> String {
    let mut text = WRITTEN.to_owned();
    for (index, board) in boards().into_iter().enumerate() {
        let separator = if index == 0 { "" } else { "---\n" };
        let uid = board.uid;
        let map = config_map(uid);
        let _infallible = write!(
            text,
            "{separator}apiVersion: grafana.integreatly.org/v1beta1\n\
             kind: GrafanaDashboard\n\
             metadata: {{ name: {uid}, namespace: weir-system }}\n\
             spec:\n  \
               instanceSelector: {{ matchLabels: {{ dashboards: grafana }} }}\n  \
               allowCrossNamespaceImport: true\n  \
               folder: Weir\n  \
               configMapRef: {{ name: {map}, key: {uid}.json }}\n"
        );
    }
    text
}

/// Returns the PrometheusRule objects of the Prometheus Operator.
#[must_use]
pub fn prometheus_rules() -> String {
    let object = |name: &str, spec: &str| {
        format!(
            "apiVersion: monitoring.coreos.com/v1\n\
             kind: PrometheusRule\n\
             metadata: {{ name: {name}, namespace: weir-system }}\n\
             spec:\n{spec}"
        )
    };
    format!(
        "{WRITTEN}{}---\n{}",
        object("weir-recording", &records_yaml(&records(), "  ")),
        object("weir-alerts", &alerts_yaml(&alerts(), "  "))
    )
}

/// A program whose pods are scraped at a port of this name.
struct Monitor {
    name: &'static str,
    comment: &'static str,
    namespaces: &'static str,
    selector: &'static str,
    port: &'static str,
    /// Whether the pods belong to users, so that labels in their pages cannot override those of the target.
    is_users: bool,
}

const NODE: &str = "{ sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: node }";

const MONITORS: [Monitor; 4] = [
    Monitor {
        name: "weir-control",
        comment: "",
        namespaces: "",
        selector: "matchLabels: { app.kubernetes.io/name: weir-control }",
        port: "metrics",
        is_users: false,
    },
    Monitor {
        name: "weir-activator",
        comment: "",
        namespaces: "{ matchNames: [knative-serving] }",
        selector: "matchLabels: { app.kubernetes.io/name: weir-activator }",
        port: "metrics",
        is_users: false,
    },
    Monitor {
        name: "weir-agent",
        comment: "",
        namespaces: "{ matchNames: [weir-agent] }",
        selector: "matchLabels: { app.kubernetes.io/name: weir-agent }",
        port: "metrics",
        is_users: false,
    },
    Monitor {
        name: "weir-queue-proxy",
        comment: "# The port of container queue-proxy in pods of revisions that have opted in.\n",
        namespaces: "{ any: true }",
        selector: "matchExpressions: [{ key: serving.knative.dev/revision, operator: Exists }]",
        port: "http-usermetric",
        is_users: true,
    },
];

/// Relabeling which keeps pods with an annotation of Weir: other pods export nothing on that port. `weir.dev/limit-*`
/// does not opt in.
const OPTED_IN: &str = "    \
    # Others serve nothing there: an annotation other than weir.dev/limit-* opts in.\n    \
    - { action: labelmap, regex: '__meta_kubernetes_pod_annotationpresent_weir_dev_(?:[a-km-z].*|l[a-hj-z].*)', replacement: __tmp_weir }\n    \
    - { action: keep, sourceLabels: [__tmp_weir], regex: 'true' }\n";

/// Returns the relabeling of a page that a user's pod may have forged: it keeps the families of the queue-proxy, with
/// the labels of the target.
fn kept(catalogue: &[Metric]) -> String {
    let own = catalogue
        .iter()
        .filter(|metric| metric.programs.contains(&Program::QueueProxy));
    let names: Vec<_> = own
        .map(|metric| match metric.kind {
            Kind::Histogram => format!("{}_(bucket|sum|count)", metric.name),
            Kind::Counter | Kind::Gauge => metric.name.clone(),
        })
        .collect();
    format!(
        "    # A pod is its user's: of its page only queue-proxy's families count, with the namespace, pod and job of the target.\n    \
         metricRelabelings:\n    \
         - {{ action: keep, sourceLabels: [__name__], regex: '{}' }}\n    \
         - {{ action: labeldrop, regex: 'exported_.*' }}\n",
        names.join("|")
    )
}

/// Returns the PodMonitor objects of the Prometheus Operator. None of the programs' metrics is behind a Service, so
/// none has a ServiceMonitor. The label `namespace` of a metric is the function's and is kept; for a queue-proxy it is
/// that of the target, the pod's own namespace.
#[must_use]
pub fn monitors(catalogue: &[Metric]) -> String {
    let mut text = WRITTEN.to_owned();
    for (index, own) in MONITORS.iter().enumerate() {
        let Monitor {
            name,
            comment,
            namespaces,
            selector,
            port,
            is_users,
        } = own;
        let (limits, opted_in, kept) = if *is_users {
            let limits = "  sampleLimit: 1000\n  labelLimit: 40\n  labelValueLengthLimit: 300\n";
            (limits, OPTED_IN, kept(catalogue))
        } else {
            ("", "", String::new())
        };
        let honor = !is_users;
        let separator = if index == 0 { "" } else { "---\n" };
        let namespaces = if namespaces.is_empty() {
            String::new()
        } else {
            format!("  namespaceSelector: {namespaces}\n")
        };
        let _infallible = write!(
            text,
            "{separator}{comment}apiVersion: monitoring.coreos.com/v1\n\
             kind: PodMonitor\n\
             metadata: {{ name: {name}, namespace: weir-system }}\n\
             spec:\n\
             {namespaces}  selector: {{ {selector} }}\n\
             {limits}  podMetricsEndpoints:\n  \
               - port: {port}\n    \
                 interval: 30s\n    \
                 honorLabels: {honor}\n    \
                 relabelings:\n    \
                 - {NODE}\n\
             {opted_in}{kept}"
        );
    }
    text
}
