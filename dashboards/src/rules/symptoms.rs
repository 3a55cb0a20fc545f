//! Alerts of symptoms: a part of Weir that does not work.

use super::{Alert, Case, Severity};

/// The parts of an alert, without its cases.
type Head = (&'static str, String, &'static str, Severity, &'static str);

fn alert((name, expr, hold, severity, summary): Head, cases: Vec<Case>) -> Alert {
    Alert {
        name,
        expr,
        hold,
        severity,
        summary,
        cases,
        fires_without_data: false,
    }
}

const SLOT: [(&str, &str); 2] = [("slot", "0"), ("gpu", "GPU-1")];
const ON_SLOT: &str = "slot=\"0\",gpu=\"GPU-1\"";
const SHARE: [(&str, &str); 4] = [
    ("namespace", "default"),
    ("function", "f"),
    ("slot", "0"),
    ("gpu", "GPU-1"),
];
const ON_SHARE: &str = "namespace=\"default\",function=\"f\",slot=\"0\",gpu=\"GPU-1\"";
const FUNCTION: [(&str, &str); 2] = [("namespace", "default"), ("function", "f")];
const ON_FUNCTION: &str = "namespace=\"default\",function=\"f\"";

/// Returns all alerts of symptoms.
pub(super) fn alerts() -> Vec<Alert> {
    let mut all = programs();
    all.extend(slots());
    all.extend(shares());
    all.extend(requests());
    all.extend(settings());
    all
}

fn programs() -> Vec<Alert> {
    let agent = [("job", "weir-system/weir-agent"), ("instance", "n1:9471")];
    let control = [("job", "weir-system/weir-control"), ("instance", "c:9476")];
    let up = |job: &str, values: &str| {
        (
            format!("up{{job=\"weir-system/weir-{job}\"}}"),
            values.to_owned(),
        )
    };
    let present = || {
        vec![
            up("activator", "1+0x30"),
            up("control", "1+0x30"),
            up("queue-proxy", "1+0x30"),
        ]
    };
    let without = |job: &str| {
        let mut series = present();
        series.retain(|(name, _)| !name.contains(job));
        Case {
            series,
            ..Case::new(format!("fires without a target of {job}"), "20m", &[])
        }
    };
    let everything = Case {
        series: present(),
        ..Case::new("is silent while there are targets", "20m", &[])
    };
    vec![
        alert(
            (
                "WeirAgentDown",
                "up{job=\"weir-system/weir-agent\"} == 0".to_owned(),
                "2m",
                Severity::Page,
                "The agent {{ $labels.instance }} does not answer: its node's GPUs are shared without quotas, and new pods do not start.",
            ),
            vec![
                Case::new("fires", "10m", &[("up{job=\"weir-system/weir-agent\",instance=\"n1:9471\"}", "1+0x5 0+0x10")])
                    .fires(&agent, "The agent n1:9471 does not answer: its node's GPUs are shared without quotas, and new pods do not start."),
                Case::new("is silent while it answers", "10m", &[("up{job=\"weir-system/weir-agent\",instance=\"n1:9471\"}", "1+0x15")]),
                Case::new("is silent after one failed scrape", "7m", &[("up{job=\"weir-system/weir-agent\",instance=\"n1:9471\"}", "1+0x5 0+0x0 1+0x10")]),
                Case::new("is silent at once", "5m", &[("up{job=\"weir-system/weir-agent\",instance=\"n1:9471\"}", "1+0x4 0+0x10")]),
                Case::new("is silent for another job", "10m", &[("up{job=\"x\",instance=\"n1:9471\"}", "0+0x15")]),
            ],
        ),
        alert(
            (
                "WeirTargetDown",
                "up{job=~\"weir-system/weir-(activator|control|queue-proxy)\"} == 0".to_owned(),
                "5m",
                Severity::Ticket,
                "{{ $labels.instance }} of {{ $labels.job }} cannot be scraped.",
            ),
            vec![
                Case::new("fires", "20m", &[("up{job=\"weir-system/weir-control\",instance=\"c:9476\"}", "0+0x25")])
                    .fires(&control, "c:9476 of weir-system/weir-control cannot be scraped."),
                Case::new("is silent while it answers", "20m", &[("up{job=\"weir-system/weir-control\",instance=\"c:9476\"}", "1+0x25")]),
                Case::new("leaves agents to their own alert", "20m", &[("up{job=\"weir-system/weir-agent\",instance=\"n\"}", "0+0x25")]),
            ],
        ),
        Alert {
            fires_without_data: true,
            ..alert(
                (
                    "WeirTargetMissing",
                    "absent(up{job=\"weir-system/weir-activator\"}) or absent(up{job=\"weir-system/weir-control\"}) or (absent(up{job=\"weir-system/weir-agent\"}) and on () (count(up{job=\"weir-system/weir-agent\"} offset 1h)))".to_owned(),
                    "10m",
                    Severity::Ticket,
                    "There is no target {{ $labels.job }}: its pods are gone, or no monitor selects them.",
                ),
                vec![
                    without("activator").fires(&[("job", "weir-system/weir-activator")], "There is no target weir-system/weir-activator: its pods are gone, or no monitor selects them."),
                    without("control").fires(&[("job", "weir-system/weir-control")], "There is no target weir-system/weir-control: its pods are gone, or no monitor selects them."),
                    Case {
                        series: present().into_iter().chain([up("agent", "1+0x60 stale")]).map(|(name, values)| (name, values.replace("1+0x30", "1+0x90"))).collect(),
                        ..Case::new("fires where there was an agent an hour ago", "90m", &[])
                    }
                    .fires(&[("job", "weir-system/weir-agent")], "There is no target weir-system/weir-agent: its pods are gone, or no monitor selects them."),
                    everything,
                ],
            )
        },
        Alert {
            fires_without_data: true,
            ..alert(
                (
                    "WeirWatchdog",
                    "vector(1)".to_owned(),
                    "0s",
                    Severity::None,
                    "Alerts arrive. Where this one does not, none does.",
                ),
                vec![Case::new("fires always", "0m", &[]).fires(&[], "Alerts arrive. Where this one does not, none does.")],
            )
        },
        alert(
            (
                "WeirNoLeader",
                "sum(weir_control_leader) == 0".to_owned(),
                "2m",
                Severity::Page,
                "{{ $value }} processes of role control lead: nothing is attached, detached or described.",
            ),
            vec![
                Case::new("fires", "10m", &[("weir_control_leader{pod=\"a\"}", "0+0x15"), ("weir_control_leader{pod=\"b\"}", "0+0x15")])
                    .fires(&[], "0 processes of role control lead: nothing is attached, detached or described."),
                Case::new("is silent while one leads", "10m", &[("weir_control_leader{pod=\"a\"}", "0+0x15"), ("weir_control_leader{pod=\"b\"}", "1+0x15")]),
                Case::new("is silent while another takes over", "3m", &[("weir_control_leader{pod=\"a\"}", "1+0x2 0+0x15")]),
            ],
        ),
    ]
}

fn slots() -> Vec<Alert> {
    let state = |state: &str| {
        format!("weir_gpu_slot_mps_state{{{ON_SLOT},state=\"{state}\",instance=\"n\"}}")
    };
    let lost = format!("weir_gpu_slot_lost{{{ON_SLOT},instance=\"n\"}}");
    let idle =
        format!("weir_gpu_slot_idle_while_waiting_seconds_total{{{ON_SLOT},instance=\"n\"}}");
    vec![
        alert(
            (
                "WeirMpsDown",
                "sum by (slot, gpu) (weir_gpu_slot_mps_state{state=~\"down|unable\"}) > 0".to_owned(),
                "2m",
                Severity::Page,
                "The MPS daemon of slot {{ $labels.slot }} ({{ $labels.gpu }}) does not run: pods that share it have failed or cannot start.",
            ),
            vec![
                Case::new("fires", "10m", &[(&state("unable"), "1+0x15"), (&state("up"), "0+0x15")])
                    .fires(&SLOT, "The MPS daemon of slot 0 (GPU-1) does not run: pods that share it have failed or cannot start."),
                Case::new("is silent while it runs", "10m", &[(&state("down"), "0+0x15"), (&state("unable"), "0+0x15"), (&state("up"), "1+0x15")]),
                Case::new("is silent while it is started again", "3m", &[(&state("down"), "0+0x2 1+0x1 0+0x9")]),
            ],
        ),
        alert(
            (
                "WeirSlotLost",
                "max by (slot, gpu) (weir_gpu_slot_lost) > 0".to_owned(),
                "1m",
                Severity::Page,
                "Nothing can compute on slot {{ $labels.slot }} ({{ $labels.gpu }}).",
            ),
            vec![
                Case::new("fires", "10m", &[(&lost, "1+0x15")])
                    .fires(&SLOT, "Nothing can compute on slot 0 (GPU-1)."),
                Case::new("is silent while it is well", "10m", &[(&lost, "0+0x15")]),
            ],
        ),
        alert(
            (
                "WeirNvmlSilent",
                "weir_gpu_agent_nvml_up == 0".to_owned(),
                "2m",
                Severity::Page,
                "NVML does not answer the agent {{ $labels.instance }}: slots, memory and losses are not known there.",
            ),
            vec![
                Case::new("fires", "10m", &[("weir_gpu_agent_nvml_up{instance=\"n\"}", "0+0x15")])
                    .fires(&[("instance", "n")], "NVML does not answer the agent n: slots, memory and losses are not known there."),
                Case::new("is silent while it answers", "10m", &[("weir_gpu_agent_nvml_up{instance=\"n\"}", "1+0x15")]),
            ],
        ),
        alert(
            (
                "WeirSlotIdleWhileWaiting",
                "sum by (slot, gpu) (rate(weir_gpu_slot_idle_while_waiting_seconds_total[5m])) > 0.05".to_owned(),
                "5m",
                Severity::Ticket,
                "Slot {{ $labels.slot }} ({{ $labels.gpu }}) idles {{ $value | humanizePercentage }} of the time while pods that could compute wait.",
            ),
            vec![
                // Idle for 3.6 of 60 seconds.
                Case::new("fires", "20m", &[(&idle, "0+3.6x25")])
                    .fires(&SLOT, "Slot 0 (GPU-1) idles 6% of the time while pods that could compute wait."),
                Case::new("is silent just below", "20m", &[(&idle, "0+2.4x25")]),
            ],
        ),
    ]
}

fn shares() -> Vec<Alert> {
    let of = |metric: &str| format!("{metric}{{{ON_SHARE},revision=\"f-1\",instance=\"n\"}}");
    let (used, limit) = (
        of("weir_gpu_used_seconds_total"),
        of("weir_gpu_quota_limit_ratio"),
    );
    let (request, asked) = (
        of("weir_gpu_quota_request_ratio"),
        of("weir_gpu_asked_ratio"),
    );
    let ungated = of("weir_gpu_ungated_seconds_total");
    let by = "sum by (namespace, function, slot, gpu)";
    vec![
        alert(
            (
                "WeirShareNotEnforced",
                format!(
                    "({by} (rate(weir_gpu_ungated_seconds_total[5m])) > 0.01) or ({by} (rate(weir_gpu_used_seconds_total[5m])) / {by} (avg_over_time(weir_gpu_quota_limit_ratio[5m])) > 1.1)"
                ),
                "5m",
                Severity::Ticket,
                "The share of {{ $labels.namespace }}/{{ $labels.function }} on slot {{ $labels.slot }} ({{ $labels.gpu }}) is not enforced: its gates stand open, or it uses more than its limit.",
            ),
            vec![
                Case::new("fires at 15 % above the limit", "20m", &[(&used, "0+34.5x25"), (&limit, "0.5+0x25")])
                    .fires(&SHARE, "The share of default/f on slot 0 (GPU-1) is not enforced: its gates stand open, or it uses more than its limit."),
                Case::new("is silent at 5 % above the limit", "20m", &[(&used, "0+31.5x25"), (&limit, "0.5+0x25")]),
                Case::new("is silent while pods at their limit become fewer", "27m", &[(&used, "0+120x20 2460+60x20"), (&limit, "2+0x20 1+0x20")]),
                Case::new("fires where gates stand open", "20m", &[(&ungated, "0+0.9x25")])
                    .fires(&SHARE, "The share of default/f on slot 0 (GPU-1) is not enforced: its gates stand open, or it uses more than its limit."),
                Case::new("is silent where they hardly do", "20m", &[(&ungated, "0+0.45x25")]),
            ],
        ),
        alert(
            (
                "WeirPodStarved",
                format!(
                    "({by} (rate(weir_gpu_used_seconds_total[5m])) / {by} (avg_over_time(weir_gpu_quota_request_ratio[5m])) < 0.8) and on (namespace, function, slot, gpu) ({by} (weir_gpu_asked_ratio) / {by} (weir_gpu_quota_request_ratio) >= 1)"
                ),
                "5m",
                Severity::Page,
                "{{ $labels.namespace }}/{{ $labels.function }} gets {{ $value | humanizePercentage }} of its guaranteed share of slot {{ $labels.slot }} ({{ $labels.gpu }}) while it wants all of it.",
            ),
            vec![
                Case::new("fires at 70 % of the request", "20m", &[(&used, "0+12.6x25"), (&request, "0.3+0x25"), (&asked, "0.5+0x25")])
                    .fires(&SHARE, "default/f gets 70% of its guaranteed share of slot 0 (GPU-1) while it wants all of it."),
                Case::new("is silent at 85 % of the request", "20m", &[(&used, "0+15.3x25"), (&request, "0.3+0x25"), (&asked, "0.5+0x25")]),
                Case::new("is silent where it wants less", "20m", &[(&used, "0+6x25"), (&request, "0.3+0x25"), (&asked, "0.2+0x25")]),
                Case::new("fires where it wants exactly its request", "20m", &[(&used, "0+7.5x25"), (&request, "0.25+0x25"), (&asked, "0.25+0x25")])
                    .fires(&SHARE, "default/f gets 50% of its guaranteed share of slot 0 (GPU-1) while it wants all of it."),
            ],
        ),
    ]
}

fn requests() -> Vec<Alert> {
    let ended = |metric: &str, outcome: &str| {
        format!("{metric}{{{ON_FUNCTION},revision=\"f-1\",pod=\"a\",outcome=\"{outcome}\"}}")
    };
    let own = |outcome: &str| ended("weir_requests_total", outcome);
    let clients = |outcome: &str| ended("weir_function_requests_total", outcome);
    let of = |outcome: &str| {
        format!(
            "namespace_function_outcome:weir_requests:increase5m{{outcome=\"{outcome}\"}} / on (namespace, function) group_left () sum by (namespace, function) (namespace_function_outcome:weir_requests:increase5m)"
        )
    };
    let labels = |outcome: &'static str| [FUNCTION[0], FUNCTION[1], ("outcome", outcome)];
    let attached = format!("weir_attached{{{ON_FUNCTION},revision=\"f-1\",pod=\"c\"}}");
    let failing = "weir_view_failures_total{reason=\"unreachable\",job=\"j\",instance=\"d\"}";
    vec![
        alert(
            (
                "WeirQueueFull",
                format!("{} > 0.01", of("refused")),
                "10m",
                Severity::Page,
                "{{ $labels.namespace }}/{{ $labels.function }} refuses {{ $value | humanizePercentage }} of its requests: its queue is full.",
            ),
            vec![
                Case::new("fires at 1.2 %", "30m", &[(&own("refused"), "0+12x35"), (&own("answered"), "0+988x35")])
                    .fires(&labels("refused"), "default/f refuses 1.2% of its requests: its queue is full."),
                Case::new("is silent at 0.9 %", "30m", &[(&own("refused"), "0+9x35"), (&own("answered"), "0+991x35")]),
                Case::new("is silent after one in the night", "18m", &[(&own("refused"), "0+0x10 1+0x25"), (&own("answered"), "0+0x35")]),
                Case::new("takes activator-ext's account where it is in the path", "30m", &[(&own("refused"), "0+0x35"), (&own("answered"), "0+95x35"), (&clients("refused"), "0+5x35"), (&clients("answered"), "0+95x35")])
                    .fires(&labels("refused"), "default/f refuses 5% of its requests: its queue is full."),
            ],
        ),
        alert(
            (
                "WeirShedding",
                format!("{} > 0.05", of("shed")),
                "10m",
                Severity::Ticket,
                "{{ $labels.namespace }}/{{ $labels.function }} sheds {{ $value | humanizePercentage }} of its requests: they could not meet the objective.",
            ),
            vec![
                Case::new("fires at 6 %", "30m", &[(&own("shed"), "0+6x35"), (&own("answered"), "0+94x35")])
                    .fires(&labels("shed"), "default/f sheds 6% of its requests: they could not meet the objective."),
                Case::new("is silent at 4 %", "30m", &[(&own("shed"), "0+4x35"), (&own("answered"), "0+96x35")]),
            ],
        ),
        alert(
            (
                "WeirFunctionDetached",
                "max by (namespace, function, revision) (weir_attached) == 0".to_owned(),
                "15m",
                Severity::Ticket,
                "{{ $labels.namespace }}/{{ $labels.revision }} has opted in and is not attached: its requests go Knative's way.",
            ),
            vec![
                Case::new("fires", "30m", &[(&attached, "0+0x35")])
                    .fires(&[FUNCTION[0], FUNCTION[1], ("revision", "f-1")], "default/f-1 has opted in and is not attached: its requests go Knative's way."),
                Case::new("is silent while it is attached", "30m", &[(&attached, "1+0x35")]),
                Case::new("is silent over a roll-out", "12m", &[(&attached, "1+0x5 0+0x3 1+0x20")]),
            ],
        ),
        alert(
            (
                "WeirRoutingStale",
                "(sum by (job, instance) (increase(weir_view_failures_total{reason=\"unreachable\"}[5m])) > 0) or (sum by (job, instance) (increase(weir_control_watch_failures_total[5m])) > 0)".to_owned(),
                "10m",
                Severity::Ticket,
                "{{ $labels.instance }} cannot read the Kubernetes API (failures in five minutes: {{ $value | humanize }}): it goes by its last view.",
            ),
            vec![
                Case::new("fires", "30m", &[(failing, "0+0x3 1+0x3 2+0x3 3+0x3 4+0x3 5+0x3 6+0x3 7+0x3 8+0x3")])
                    .fires(&[("job", "j"), ("instance", "d")], "d cannot read the Kubernetes API (failures in five minutes: 1): it goes by its last view."),
                Case::new("fires for control", "30m", &[("weir_control_watch_failures_total{job=\"j\",instance=\"c\"}", "0+0x3 1+0x3 2+0x3 3+0x3 4+0x3 5+0x3 6+0x3 7+0x3 8+0x3")])
                    .fires(&[("job", "j"), ("instance", "c")], "c cannot read the Kubernetes API (failures in five minutes: 1): it goes by its last view."),
                Case::new("is silent after one failure", "18m", &[(failing, "0+0x10 1+0x25")]),
                Case::new("is silent without a failure of control", "30m", &[("weir_control_watch_failures_total{job=\"j\",instance=\"c\"}", "3+0x35")]),
                Case::new("is silent for an object that cannot be used", "30m", &[(&failing.replace("unreachable", "unusable"), "0+1x35")]),
            ],
        ),
    ]
}

fn settings() -> Vec<Alert> {
    let problems =
        format!("weir_option_problems_total{{{ON_FUNCTION},revision=\"f-1\",pod=\"a\"}}");
    let certificates = "weir_certificate_reload_failures_total{job=\"j\",instance=\"i\"}";
    let lines = "weir_log_lines_dropped_total{job=\"j\",instance=\"i\"}";
    let refused = "weir_gpu_pods_refused_total{reason=\"no-room\",instance=\"n\"}";
    vec![
        alert(
            (
                "WeirPodsRefused",
                "sum by (instance, reason) (increase(weir_gpu_pods_refused_total[15m])) > 0".to_owned(),
                "5m",
                Severity::Ticket,
                "The agent {{ $labels.instance }} has refused pods {{ $value | humanize }} times in 15 minutes: {{ $labels.reason }}.",
            ),
            vec![
                Case::new("fires", "30m", &[(refused, "0+0x18 1+0x15")])
                    .fires(&[("instance", "n"), ("reason", "no-room")], "The agent n has refused pods 1 times in 15 minutes: no-room."),
                Case::new("is silent without one", "30m", &[(refused, "7+0x35")]),
            ],
        ),
        alert(
            (
                "WeirOptionsUnusable",
                "max by (namespace, function, revision) (weir_option_problems_total) > 0".to_owned(),
                "5m",
                Severity::Ticket,
                "{{ $labels.namespace }}/{{ $labels.revision }}: annotations of Weir that cannot be used, so that their defaults hold: {{ $value }}.",
            ),
            vec![
                Case::new("fires", "20m", &[(&problems, "1+0x25")])
                    .fires(&[FUNCTION[0], FUNCTION[1], ("revision", "f-1")], "default/f-1: annotations of Weir that cannot be used, so that their defaults hold: 1."),
                Case::new("is silent without one", "20m", &[(&problems, "0+0x25")]),
            ],
        ),
        alert(
            (
                "WeirCertificateNotReloaded",
                "sum by (job, instance) (increase(weir_certificate_reload_failures_total[1h])) > 0".to_owned(),
                "5m",
                Severity::Page,
                "{{ $labels.instance }} of {{ $labels.job }} could not use a changed certificate: the old one serves until it expires.",
            ),
            vec![
                Case::new("fires", "70m", &[(certificates, "0+0x30 1+0x45")])
                    .fires(&[("job", "j"), ("instance", "i")], "i of j could not use a changed certificate: the old one serves until it expires."),
                Case::new("is silent without a failure", "70m", &[(certificates, "1+0x75")]),
            ],
        ),
        alert(
            (
                "WeirLogLinesDropped",
                "sum by (job, instance) (rate(weir_log_lines_dropped_total[15m])) > 0".to_owned(),
                "5m",
                Severity::Ticket,
                "{{ $labels.instance }} of {{ $labels.job }} drops {{ $value | humanize }} log lines a second: standard output does not take them.",
            ),
            vec![
                Case::new("fires", "30m", &[(lines, "0+60x35")])
                    .fires(&[("job", "j"), ("instance", "i")], "i of j drops 1 log lines a second: standard output does not take them."),
                Case::new("is silent without one", "30m", &[(lines, "60+0x35")]),
            ],
        ),
    ]
}
