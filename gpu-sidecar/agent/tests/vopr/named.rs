//! Runs which have failed once, as small as they could be made. What each of them showed is also a test of the code that was
//! mended; here it is kept as it came about.

use crate::plan::{Fault, Plan};

/// Named runs: what went wrong, and the plan which showed it.
pub(crate) fn named() -> Vec<(&'static str, Plan)> {
    let plan = |seed, slots, pods, processes, span_ms, fault_ms, faults: &[Fault]| Plan {
        seed,
        slots,
        pods,
        processes,
        span_ms,
        fault_ms,
        orders_ms: 0,
        requests_ms: 0,
        siblings: false,
        shared: false,
        faults: faults.to_vec(),
    };
    let moving = |orders_ms, plan: Plan| Plan { orders_ms, ..plan };
    let leased = |requests_ms, plan: Plan| Plan {
        requests_ms,
        ..plan
    };
    vec![
        (
            "work that was in flight when an agent greeted its process was charged from its begin, and again at the process's death",
            plan(337_871, 1, 1, 1, 415, 336, &[Fault::Malformed, Fault::Kill]),
        ),
        (
            "the gate of a pod that became the holder amid its eviction was closed at the eviction's end",
            Plan {
                siblings: true,
                ..leased(
                    148,
                    plan(
                        4_002_134,
                        2,
                        4,
                        2,
                        3_772,
                        110,
                        &[
                            Fault::Cut,
                            Fault::Unsent,
                            Fault::Malformed,
                            Fault::Kill,
                            Fault::AgentHang,
                            Fault::PodRemove,
                            Fault::SlotLost,
                            Fault::QueueLiar,
                        ],
                    ),
                )
            },
        ),
        (
            "a process that had failed had the lease again after a restart of the agent",
            leased(
                196,
                plan(
                    1_158,
                    1,
                    2,
                    1,
                    1_819,
                    337,
                    &[Fault::AgentKill, Fault::Sticky],
                ),
            ),
        ),
        (
            "each model whose first eviction lacked host memory stayed a second longer, and requests waited for all of them",
            leased(52, plan(90_018, 1, 4, 2, 310, 147, &[])),
        ),
        (
            "a process that was away when its pod's model returned did so later without room",
            leased(
                236,
                plan(
                    309_627,
                    1,
                    5,
                    2,
                    2_868,
                    116,
                    &[Fault::Cut, Fault::Doubled, Fault::Stop, Fault::QueueLiar],
                ),
            ),
        ),
        (
            "a process that was away was ordered back by its own claim, before there was room",
            leased(
                124,
                plan(
                    606_384,
                    1,
                    4,
                    2,
                    1_525,
                    145,
                    &[Fault::Doubled, Fault::Malformed],
                ),
            ),
        ),
        (
            "a claim that came twice while it waited counted as granted on the next connection",
            leased(
                156,
                plan(811_070, 1, 5, 2, 1_607, 282, &[Fault::Cut, Fault::Doubled]),
            ),
        ),
        (
            "a model that was to leave, and was there again after its restore had failed, counted as staying",
            leased(
                95,
                plan(
                    604_213,
                    2,
                    5,
                    2,
                    3_165,
                    181,
                    &[Fault::Malformed, Fault::QueueLiar],
                ),
            ),
        ),
        (
            "a model that left when its slot was lost got a token for its hashes",
            leased(
                126,
                plan(
                    502_048,
                    2,
                    5,
                    2,
                    2_352,
                    102,
                    &[
                        Fault::Malformed,
                        Fault::Kill,
                        Fault::Stop,
                        Fault::AgentHang,
                        Fault::PodRemove,
                        Fault::SlotLost,
                    ],
                ),
            ),
        ),
        (
            "a queue that greeted with a lease from before its model left counted as having it there",
            leased(49, plan(321_871, 1, 5, 2, 2_207, 69, &[Fault::QueueLiar])),
        ),
        (
            "a holder whose model had left under the lease counted as having it there for its next turn",
            leased(
                49,
                plan(
                    321_871,
                    1,
                    5,
                    2,
                    2_943,
                    69,
                    &[Fault::Doubled, Fault::Unsent, Fault::QueueLiar],
                ),
            ),
        ),
        (
            "a queue that greeted with a lease while its model left counted as having it there",
            leased(
                303,
                plan(
                    328_129,
                    1,
                    5,
                    2,
                    1_667,
                    401,
                    &[Fault::Unsent, Fault::Kill, Fault::Stop, Fault::QueueLiar],
                ),
            ),
        ),
        (
            "memory that was granted in a former page, between a greeting and its reading, was not counted",
            leased(
                118,
                plan(
                    316_325,
                    1,
                    4,
                    1,
                    1_411,
                    38,
                    &[Fault::Late, Fault::Cut, Fault::Malformed, Fault::Stop],
                ),
            ),
        ),
        (
            "a claim that waited was not answered when the next one of its pod was granted",
            leased(
                90,
                plan(
                    5_077,
                    1,
                    2,
                    2,
                    3_478,
                    45,
                    &[Fault::Late, Fault::Doubled, Fault::Kill],
                ),
            ),
        ),
        (
            "what a process held that had ended was granted again with the claims of its pod that waited",
            leased(83, plan(10_293, 1, 3, 2, 4_357, 134, &[Fault::Kill])),
        ),
        (
            "a process that had returned between two connections, for a restore which failed then, took memory that others got",
            leased(134, plan(709, 1, 3, 2, 3_825, 208, &[Fault::Cut])),
        ),
        (
            "a process that had returned between two connections took memory that others got, while another of its pod waited for a claim",
            leased(
                280,
                plan(11_096, 1, 4, 2, 1_233, 90, &[Fault::Late, Fault::Malformed]),
            ),
        ),
        (
            "a model that was to leave for a claim became the holder, and the claim waited for ever",
            leased(
                121,
                plan(
                    23_713,
                    1,
                    3,
                    2,
                    1_132,
                    234,
                    &[
                        Fault::Unsent,
                        Fault::Malformed,
                        Fault::Kill,
                        Fault::AgentKill,
                        Fault::Clock,
                        Fault::SlotLost,
                    ],
                ),
            ),
        ),
        (
            "a recalled holder whose next turn was decided on waited for ever with a claim",
            leased(89, plan(25_131, 1, 4, 2, 3_059, 199, &[Fault::PodRemove])),
        ),
        (
            "a recalled holder waited for ever with a claim that had no room beside the model of the next turn",
            leased(
                185,
                plan(
                    47_644,
                    1,
                    5,
                    2,
                    1_177,
                    268,
                    &[
                        Fault::Cut,
                        Fault::Unsent,
                        Fault::Kill,
                        Fault::Stop,
                        Fault::AgentKill,
                        Fault::AgentHang,
                        Fault::PodRemove,
                        Fault::SlotLost,
                    ],
                ),
            ),
        ),
        (
            "the model of a holder returned from an order of its own beside others, and was not counted",
            leased(119, plan(105_819, 1, 5, 2, 2_638, 71, &[Fault::Cut])),
        ),
        (
            "a recalled holder waited for ever with a claim, since its own model was the first that was to leave",
            leased(
                228,
                plan(
                    107_753,
                    1,
                    4,
                    2,
                    810,
                    178,
                    &[
                        Fault::Cut,
                        Fault::Doubled,
                        Fault::Unsent,
                        Fault::Malformed,
                        Fault::Kill,
                        Fault::AgentKill,
                        Fault::AgentHang,
                        Fault::Clock,
                    ],
                ),
            ),
        ),
        (
            "a holder that was recalled on a lost slot waited for ever with a claim, since its model was to come for its own next turn",
            leased(
                152,
                plan(
                    128_212,
                    1,
                    1,
                    1,
                    3_138,
                    199,
                    &[
                        Fault::Late,
                        Fault::Cut,
                        Fault::Doubled,
                        Fault::Kill,
                        Fault::Stop,
                        Fault::AgentHang,
                        Fault::SlotLost,
                    ],
                ),
            ),
        ),
        (
            "two processes asked each other for memory without end",
            plan(3, 1, 3, 1, 1_748, 305, &[Fault::Fork]),
        ),
        (
            "a report on the gate of former pages returned the new token",
            plan(
                17,
                2,
                5,
                2,
                1_727,
                350,
                &[Fault::Unsent, Fault::Malformed, Fault::AgentKill],
            ),
        ),
        (
            "a process whose probe could not be sent waited for ten seconds",
            plan(11, 1, 3, 1, 646, 321, &[Fault::Unsent]),
        ),
        (
            "a launch that was preempted behind the gate ran beside another pod's",
            plan(37, 1, 5, 1, 1_589, 98, &[]),
        ),
        (
            "a slot that was lost granted a token while its pods were stopped one by one",
            plan(
                16,
                1,
                4,
                1,
                2_093,
                396,
                &[Fault::Cut, Fault::Doubled, Fault::SlotLost],
            ),
        ),
        (
            "a launch by a grant that was noticed after Hello ran beside another pod's",
            plan(
                328_213,
                1,
                3,
                2,
                3_892,
                345,
                &[Fault::Cut, Fault::Fork, Fault::PodRemove],
            ),
        ),
        (
            "kernel time in the page of a connection whose end was not read yet was charged twice",
            plan(
                320_876,
                2,
                3,
                1,
                3_013,
                229,
                &[
                    Fault::Late,
                    Fault::Cut,
                    Fault::Doubled,
                    Fault::Unsent,
                    Fault::Malformed,
                    Fault::Kill,
                    Fault::Stop,
                    Fault::Fork,
                    Fault::AgentHang,
                    Fault::Liar,
                ],
            ),
        ),
        (
            "kernel time between Attach and the new pages was charged twice",
            plan(686, 2, 1, 1, 373, 82, &[Fault::Malformed, Fault::PodChange]),
        ),
        (
            "processes that computed at the same time were charged more than the time that had passed",
            plan(919, 1, 4, 2, 376, 88, &[]),
        ),
        (
            "an Attach that was read after that of a later connection held the slot",
            plan(
                27_021,
                1,
                5,
                2,
                3_494,
                149,
                &[Fault::Late, Fault::Cut, Fault::AgentKill, Fault::Clock],
            ),
        ),
        (
            "a process of which a former agent had kept two records counted as silent although it had greeted",
            plan(
                108_880,
                1,
                5,
                2,
                837,
                92,
                &[
                    Fault::Late,
                    Fault::Cut,
                    Fault::Unsent,
                    Fault::AgentKill,
                    Fault::AgentHang,
                    Fault::Clock,
                    Fault::Liar,
                    Fault::PodChange,
                    Fault::MpsDown,
                ],
            ),
        ),
        (
            "kernel time that was noticed after a connection had been replaced was not charged",
            plan(825_529, 1, 5, 2, 1_323, 21, &[Fault::Cut]),
        ),
        (
            "a model left while a process of its pod was connecting again",
            moving(
                213,
                plan(
                    1_202,
                    1,
                    1,
                    2,
                    1_638,
                    170,
                    &[Fault::Unsent, Fault::Malformed, Fault::Fork, Fault::MpsDown],
                ),
            ),
        ),
        (
            "host memory that was lost with a connection was never given again",
            moving(
                219,
                plan(
                    3_890,
                    1,
                    2,
                    2,
                    511,
                    311,
                    &[Fault::Late, Fault::Cut, Fault::Malformed, Fault::Liar],
                ),
            ),
        ),
        (
            "a process whose answer to an order was lost returned although others had its room",
            Plan {
                shared: true,
                ..leased(
                    195,
                    plan(8_201_823, 1, 5, 1, 3_217, 144, &[Fault::Cut, Fault::Clock]),
                )
            },
        ),
        (
            "what earlier agents had let processes register exceeded the bound for good",
            moving(
                253,
                plan(
                    8_200_737,
                    1,
                    5,
                    1,
                    3_600,
                    379,
                    &[Fault::AgentKill, Fault::SlotLost],
                ),
            ),
        ),
        (
            "a pod was charged for what a process had in flight at its end also for the time that another process had reported meanwhile",
            plan(
                9_600_850,
                2,
                4,
                2,
                1_671,
                37,
                &[
                    Fault::Unsent,
                    Fault::Malformed,
                    Fault::Kill,
                    Fault::Fork,
                    Fault::AgentHang,
                    Fault::Liar,
                    Fault::PodRemove,
                    Fault::SlotLost,
                ],
            ),
        ),
    ]
}
