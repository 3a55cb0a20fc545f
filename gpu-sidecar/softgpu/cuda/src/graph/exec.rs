//! Executable graphs: instantiated copies of graphs, uploaded to the server once for each context that launches them.

use std::ffi::c_char;
use std::io::{Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use softgpu_wire::message::{Kind as Ask, Message};
use softgpu_wire::page::Awaited;
use softgpu_wire::record::Command;

use crate::context::Context;
use crate::copy::Copy3d;
use crate::driver::{Driver, driver};
use crate::effects::Effect;
use crate::error::{Error, Result};
use crate::event::{self, Event};
use crate::pointer::{In, Out};
use crate::state::{State, event_slot};
use crate::stream::{self, DefaultStream, Stream};
use crate::table::{Handle, Kind, Table};
use crate::work::{Way, Work};

use super::capture::{capture_node, capture_of};
use super::exchange::InOut;
use super::nodes::{Graph, NodeAction, NodeRef, kind};
use super::objects::Object;
use super::parameters::{
    HostParameters, KernelParameters, KernelParametersV1, NodeParameters, SetParameters, copy_work,
    known_event,
};
use super::plan::{Action, Part, Plan, encode};
use super::program::{Body, Program};

/// Supported `CUgraphInstantiate_flags`: automatic free on launch, upload, node priorities.
const FLAGS: u64 = 1 | UPLOAD | 8;
const UPLOAD: u64 = 2;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`, which is not supported.
const DEVICE_LAUNCH: u64 = 4;
/// Largest number of commands of one launch, which are put into the ring together.
const PARTS_MAX: usize = 2048;

/// A command of a launch.
#[derive(Clone)]
enum Piece {
    Graph {
        number: u32,
        body: Option<Arc<Body>>,
    },
    Record(Handle<Event>),
    Wait(Handle<Event>),
}

/// Pieces of a graph, as uploaded to the server for a context.
struct Upload {
    context: Handle<Context>,
    pieces: Arc<[Piece]>,
}

/// An executable graph, which holds its plan and its uploads.
pub(crate) struct Exec {
    plan: Plan,
    flags: u64,
    /// Number of commands of one launch.
    commands: usize,
    uploads: Vec<Upload>,
    /// Stream of the last launch, and the condition under which that launch has ended.
    last: Option<(Handle<Stream>, Awaited)>,
    /// Event recorded behind a launch, for a next launch in another stream.
    mark: Handle<Event>,
    objects: Vec<Arc<Object>>,
}

impl Kind for Exec {
    const NUMBER: u64 = 9;
}

/// Creates a file with the encoded nodes of a graph.
fn file_of(bytes: &[u8]) -> Result<OwnedFd> {
    let file = memfd_create("weir-softgpu-graph", MemfdFlags::CLOEXEC)
        .map_err(|_| Error::OUT_OF_MEMORY)?;
    let mut file = std::fs::File::from(file);
    let written = file.write_all(bytes).and_then(|()| file.rewind());
    written.map_err(|_| Error::OUT_OF_MEMORY)?;
    Ok(file.into())
}

/// Makes the server forget uploaded pieces.
fn forget(driver: &Driver, pieces: &[Piece]) {
    for piece in pieces {
        if let Piece::Graph { number, .. } = piece {
            let message = Message::new(Ask::GraphDestroy, &[u64::from(*number)]);
            let _forgotten = driver.request(&message);
        }
    }
}

/// Uploads the parts of a graph to the server.
fn upload(
    driver: &Driver,
    context: u32,
    parts: Vec<Part>,
    objects: &[Arc<Object>],
) -> Result<Vec<Piece>> {
    let mut pieces = Vec::with_capacity(parts.len());
    for part in parts {
        let piece = match part {
            Part::Record(event) => Ok(Piece::Record(event)),
            Part::Wait(event) => Ok(Piece::Wait(event)),
            Part::Nodes(lines) => file_of(&encode(&lines)).and_then(|file| {
                let words = [u64::from(context), lines.len() as u64];
                let answer = driver.request(&Message::new(Ask::Graph, &words).with_file(file))?;
                let number = u32::try_from(answer.words[0]).map_err(|_| Error::UNKNOWN)?;
                let body = Body::new(lines, objects.to_vec());
                Ok(Piece::Graph { number, body })
            }),
        };
        pieces.push(piece.inspect_err(|_| forget(driver, &pieces))?);
    }
    Ok(pieces)
}

impl Exec {
    /// Makes the server forget all uploads, because the graph has changed or is destroyed.
    fn retract(&mut self, driver: &Driver) {
        for upload in self.uploads.drain(..) {
            forget(driver, &upload.pieces);
        }
    }

    /// Makes the server forget the uploads for a destroyed context.
    fn retract_from(&mut self, driver: &Driver, context: Handle<Context>) {
        self.uploads.retain(|upload| {
            let stays = upload.context != context;
            if !stays {
                forget(driver, &upload.pieces);
            }
            stays
        });
    }

    /// Returns the pieces of a launch in a context, uploading the graph on first use.
    fn pieces(
        &mut self,
        driver: &Driver,
        contexts: &Table<Context>,
        context: Handle<Context>,
    ) -> Result<Arc<[Piece]>> {
        if let Some(upload) = self.uploads.iter().find(|upload| upload.context == context) {
            return Ok(Arc::clone(&upload.pieces));
        }
        let number = contexts
            .get(context)
            .ok_or(Error::CONTEXT_IS_DESTROYED)?
            .number;
        let pieces = upload(driver, number, self.plan.parts(), &self.objects)?;
        let pieces: Arc<[Piece]> = pieces.into();
        self.uploads.push(Upload {
            context,
            pieces: Arc::clone(&pieces),
        });
        Ok(pieces)
    }
}

/// Makes the server forget all graphs uploaded for a destroyed context.
pub(crate) fn forget_context(driver: &Driver, state: &mut State, context: Handle<Context>) {
    for exec in state
        .execs
        .handles(|exec| exec.uploads.iter().any(|upload| upload.context == context))
    {
        if let Some(exec) = state.execs.get_mut(exec) {
            exec.retract_from(driver, context);
        }
    }
}

/// Returns the pieces of a launch in a context, uploading the graph on first use.
fn pieces(
    driver: &Driver,
    state: &mut State,
    exec: Handle<Exec>,
    context: Handle<Context>,
) -> Result<Arc<[Piece]>> {
    let there = state.execs.get_mut(exec).ok_or(Error::INVALID_VALUE)?;
    there.pieces(driver, &state.contexts, context)
}

fn instantiate(
    driver: &Driver,
    state: &mut State,
    graph: Handle<Graph>,
    flags: u64,
) -> Result<Handle<Exec>> {
    if flags & DEVICE_LAUNCH != 0 {
        return Err(Error::NOT_SUPPORTED);
    }
    if flags & !FLAGS != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let plan = Plan::of(state, graph)?;
    let objects = state.graphs.get(graph).ok_or(Error::INVALID_VALUE)?;
    let objects = objects
        .objects
        .iter()
        .map(|held| Arc::clone(&held.object))
        .collect();
    let commands = plan.parts().len();
    if commands > PARTS_MAX {
        return Err(Error::NOT_SUPPORTED);
    }
    let exec = Exec {
        plan,
        flags,
        commands,
        uploads: Vec::new(),
        last: None,
        mark: Handle::NULL,
        objects,
    };
    let exec = state.execs.insert(exec).ok_or(Error::OUT_OF_MEMORY)?;
    // Uploads now, so that the first launch need not.
    if let Ok(context) = driver.current(state)
        && let Err(error) = pieces(driver, state, exec, context)
    {
        state.execs.remove(exec);
        return Err(error);
    }
    Ok(exec)
}

fn instantiate_now(graph: Handle<Graph>, flags: u64) -> Result<Handle<Exec>> {
    let driver = driver()?;
    instantiate(driver, &mut driver.state(), graph, flags)
}

/// Implements `cuGraphInstantiateWithFlags`: creates an executable graph.
pub(crate) fn instantiate_with_flags(
    out: Out<Handle<Exec>>,
    graph: Handle<Graph>,
    flags: u64,
) -> Result {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    out.put(instantiate_now(graph, flags)?)
}

/// Implements `cuGraphInstantiate` and `cuGraphInstantiate_v2`: errors are attributed to no node, and the log remains
/// empty.
pub(crate) fn instantiate_with_log(
    out: Out<Handle<Exec>>,
    graph: Handle<Graph>,
    node: Out<Handle<NodeRef>>,
    log: Out<c_char>,
    log_bytes: usize,
) -> Result {
    node.put_if_wanted(Handle::NULL);
    if log_bytes > 0 {
        log.put_if_wanted(0);
    }
    instantiate_with_flags(out, graph, 0)
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`, read and updated by `cuGraphInstantiateWithParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct InstantiateParameters {
    flags: u64,
    stream: Handle<Stream>,
    node: Handle<NodeRef>,
    result: u32,
}

/// Implements `cuGraphInstantiateWithParams`: creates an executable graph, and uploads it if requested.
pub(crate) fn instantiate_with_parameters(
    out: Out<Handle<Exec>>,
    graph: Handle<Graph>,
    parameters: InOut<InstantiateParameters>,
    default: DefaultStream,
) -> Result {
    /// `CUDA_GRAPH_INSTANTIATE_SUCCESS`, a value of `CUgraphInstantiateResult`.
    const SUCCESS: u32 = 0;
    const ERROR: u32 = 1;
    let given = parameters.get()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let exec = instantiate_now(graph, given.flags).and_then(|exec| {
        if given.flags & UPLOAD != 0 {
            let uploaded = upload_for(exec, given.stream, default);
            uploaded.inspect_err(|_| destroy(exec).unwrap_or_default())?;
        }
        Ok(exec)
    });
    parameters.put(InstantiateParameters {
        node: Handle::NULL,
        result: if exec.is_ok() { SUCCESS } else { ERROR },
        ..given
    })?;
    out.put(exec?)
}

/// Implements `cuGraphExecGetFlags`: returns the flags of the instantiation.
pub(crate) fn get_flags(exec: Handle<Exec>, out: Out<u64>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    out.put(state.execs.get(exec).ok_or(Error::INVALID_VALUE)?.flags)
}

/// Implements `cuGraphExecDestroy`: launches in progress still run.
pub(crate) fn destroy(exec: Handle<Exec>) -> Result {
    let driver = driver()?;
    let mut state = driver.room(1)?;
    let mut there = state.execs.remove(exec).ok_or(Error::INVALID_VALUE)?;
    event::forget(driver, &mut state, there.mark);
    there.retract(driver);
    Ok(())
}

/// Implements `cuGraphUpload`: uploads a graph for the context of a stream.
pub(crate) fn upload_for(
    exec: Handle<Exec>,
    stream: Handle<Stream>,
    default: DefaultStream,
) -> Result {
    let driver = driver()?;
    let mut state = driver.room(1)?;
    let stream = stream::resolve(driver, &mut state, stream, default)?;
    if capture_of(&state, stream).is_some() {
        super::capture::invalidate(&mut state, stream);
        return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
    }
    let context = state
        .streams
        .get(stream)
        .ok_or(Error::INVALID_HANDLE)?
        .context;
    pieces(driver, &mut state, exec, context).map(|_| ())
}

/// Makes a stream wait for the graph's last launch, if that was in another stream and has not ended. Returns a
/// condition for the caller to await if that stream no longer exists.
fn follow_last(
    driver: &Driver,
    state: &mut State,
    exec: Handle<Exec>,
    stream: Handle<Stream>,
) -> Result<Option<Awaited>> {
    let there = state.execs.get(exec).ok_or(Error::INVALID_VALUE)?;
    let Some((last, awaited)) = there.last.filter(|(last, _)| *last != stream) else {
        return Ok(None);
    };
    let mut mark = there.mark;
    if let Awaited::Stream(slot, target) = awaited
        && driver.page.stream_done(slot) >= target
    {
        return Ok(None);
    }
    let Some(context) = state.streams.get(last).map(|stream| stream.context) else {
        return Ok(Some(awaited));
    };
    if state
        .events
        .get(mark)
        .is_none_or(|event| event.context != context)
    {
        event::forget(driver, state, mark);
        mark = event::create(state, context, event::FLAG_DISABLE_TIMING)?;
        if let Some(there) = state.execs.get_mut(exec) {
            there.mark = mark;
        }
    }
    let number = event::next_record(state, mark);
    let event = event_slot(mark);
    stream::submit(driver, state, last, Command::Record { event, number }, None);
    stream::submit(driver, state, stream, Command::Wait { event }, None);
    Ok(None)
}

/// Submits a launch to a stream. The ring must have room.
fn submit(
    driver: &Driver,
    state: &mut State,
    exec: Handle<Exec>,
    stream: Handle<Stream>,
    pieces: &[Piece],
) -> Result {
    stream::order(driver, state, stream)?;
    for piece in pieces {
        match piece {
            Piece::Graph { number, body } => {
                let effect = body
                    .as_ref()
                    .map(|body| Effect::Graph(Program::new(Arc::clone(body))));
                let command = Command::Graph { graph: *number };
                stream::submit(driver, state, stream, command, effect);
            }
            Piece::Record(event) => event::record_in_stream(driver, state, stream, *event)?,
            Piece::Wait(event) => event::wait_in_stream(driver, state, stream, *event)?,
        }
    }
    let target = stream::target(state, stream);
    if let Some(there) = state.execs.get_mut(exec) {
        there.last = Some((stream, target));
    }
    Ok(())
}

/// Implements `cuGraphLaunch`: launches a graph, or captures it as a child graph.
pub(crate) fn launch(exec: Handle<Exec>, stream: Handle<Stream>, default: DefaultStream) -> Result {
    let driver = driver()?;
    loop {
        let (commands, streams) = {
            let state = driver.state();
            let there = state.execs.get(exec).ok_or(Error::INVALID_VALUE)?;
            (there.commands as u64, state.stream_submitted.len() as u64)
        };
        // Ordering may take two commands for each other stream.
        let mut state = driver.room(2 * streams + commands + 16)?;
        let stream = stream::resolve(driver, &mut state, stream, default)?;
        if capture_of(&state, stream).is_some() {
            let plan = state
                .execs
                .get(exec)
                .ok_or(Error::INVALID_VALUE)?
                .plan
                .clone();
            return capture_node(&mut state, stream, |state, graph| {
                plan.to_graph(state, graph).map(NodeAction::Child)
            });
        }
        let context = state
            .streams
            .get(stream)
            .ok_or(Error::INVALID_HANDLE)?
            .context;
        let pieces = pieces(driver, &mut state, exec, context)?;
        if let Some(awaited) = follow_last(driver, &mut state, exec, stream)? {
            drop(state);
            driver.wait(awaited)?;
            continue;
        }
        submit(driver, &mut state, exec, stream, &pieces)?;
        drop(state);
        crate::refusal::report_modelled(driver);
        return Ok(());
    }
}

/// Result of an update, numbered as `CUgraphExecUpdateResult`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Success = 0,
    Error = 1,
    TopologyChanged = 2,
    KindChanged = 3,
    ParametersChanged = 5,
    UnsupportedFunctionChange = 7,
}

fn is_one_row(extent: &[u64]) -> bool {
    extent[1..].iter().all(|count| *count == 1)
}

/// Decides whether a step of an executable graph may be changed to another action.
fn judge(state: &State, old: &Action, new: &Action) -> Verdict {
    if old.kind() != new.kind() {
        return Verdict::KindChanged;
    }
    match (old, new) {
        (Action::Work(Work::Kernel(old)), Action::Work(Work::Kernel(new))) => {
            let context = |function| {
                state
                    .functions
                    .get(function)
                    .map(|function| function.context)
            };
            if old.function != new.function && context(old.function) != context(new.function) {
                return Verdict::UnsupportedFunctionChange;
            }
            Verdict::Success
        }
        (Action::Work(Work::Copy(old)), Action::Work(Work::Copy(new))) => {
            let is_peer = |way| matches!(way, Way::Peer(_));
            let is_same = old.way == new.way || is_peer(old.way) && is_peer(new.way);
            let has_rows = !is_one_row(&old.extent) || !is_one_row(&new.extent);
            // For copies of several rows, only the addresses may change.
            if !is_same || has_rows && old.extent != new.extent {
                return Verdict::ParametersChanged;
            }
            Verdict::Success
        }
        (Action::Work(Work::Set(old)), Action::Work(Work::Set(new))) => {
            let device = |address| state.memory.find(address).map(|(_, region)| region.device);
            let has_rows = !is_one_row(&old.extent) || !is_one_row(&new.extent);
            let is_changed = old.extent != new.extent || old.element != new.element;
            if device(old.to.address) != device(new.to.address) || has_rows && is_changed {
                return Verdict::ParametersChanged;
            }
            Verdict::Success
        }
        (Action::Child(old), Action::Child(new)) => {
            compare(state, old, new).map_or_else(|found| found.verdict, |()| Verdict::Success)
        }
        _ => Verdict::Success,
    }
}

/// First difference that prevents one plan from becoming another.
#[derive(Debug)]
struct Difference {
    verdict: Verdict,
    /// Node of the new graph at which they differ; null if the number of nodes differs.
    node: Handle<NodeRef>,
}

fn compare(state: &State, old: &Plan, new: &Plan) -> std::result::Result<(), Difference> {
    if old.steps.len() != new.steps.len() {
        return Err(Difference {
            verdict: Verdict::TopologyChanged,
            node: Handle::NULL,
        });
    }
    for (old, new) in old.steps.iter().zip(&new.steps) {
        let sorted = |after: &[usize]| {
            let mut after = after.to_vec();
            after.sort_unstable();
            after
        };
        let verdict = if sorted(&old.after) == sorted(&new.after) {
            judge(state, &old.action, &new.action)
        } else {
            Verdict::TopologyChanged
        };
        if verdict != Verdict::Success {
            return Err(Difference {
                verdict,
                node: new.source,
            });
        }
    }
    Ok(())
}

/// Replaces a plan's actions by those of another of the same form. Nodes keep their handles, and disabled ones stay
/// disabled.
fn adopt(plan: &mut Plan, from: Plan) {
    for (old, new) in plan.steps.iter_mut().zip(from.steps) {
        match (&mut old.action, new.action) {
            (Action::Child(old), Action::Child(new)) => adopt(old, new),
            (old, new) => *old = new,
        }
    }
}

/// Changes an executable graph, which is uploaded again with the next launch.
fn change_plan(
    driver: &Driver,
    state: &mut State,
    exec: Handle<Exec>,
    change: impl FnOnce(&mut Plan) -> Result,
) -> Result {
    let there = state.execs.get_mut(exec).ok_or(Error::INVALID_VALUE)?;
    change(&mut there.plan)?;
    there.retract(driver);
    Ok(())
}

fn change(
    exec: Handle<Exec>,
    node: Handle<NodeRef>,
    action: impl FnOnce(&Driver, &mut State) -> Result<NodeAction>,
) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    state.execs.get(exec).ok_or(Error::INVALID_VALUE)?;
    let new = match action(driver, &mut state)? {
        NodeAction::Work(work) => Action::Work(work),
        NodeAction::Child(graph) => Action::Child(Plan::of(&state, graph)?),
        NodeAction::Record(event) => Action::Record(event),
        NodeAction::Wait(event) => Action::Wait(event),
    };
    let there = state.execs.get_mut(exec).ok_or(Error::INVALID_VALUE)?;
    let step = there.plan.find(node).ok_or(Error::INVALID_VALUE)?;
    let old = step.action.clone();
    if judge(&state, &old, &new) != Verdict::Success {
        return Err(Error::INVALID_VALUE);
    }
    change_plan(driver, &mut state, exec, |plan| {
        let step = plan.find(node).ok_or(Error::INVALID_VALUE)?;
        match (&mut step.action, new) {
            (Action::Child(old), Action::Child(new)) => adopt(old, new),
            (old, new) => *old = new,
        }
        Ok(())
    })
}

/// Implements `cuGraphExecKernelNodeSetParams_v2`: changes a kernel node.
pub(crate) fn change_kernel(
    exec: Handle<Exec>,
    node: Handle<NodeRef>,
    parameters: In<KernelParameters>,
) -> Result {
    change(exec, node, |driver, state| {
        parameters.get()?.work(driver, state).map(NodeAction::Work)
    })
}

/// Implements `cuGraphExecKernelNodeSetParams`: changes a kernel node, with parameters of version 1.
pub(crate) fn change_kernel_v1(
    exec: Handle<Exec>,
    node: Handle<NodeRef>,
    parameters: In<KernelParametersV1>,
) -> Result {
    change(exec, node, |driver, state| {
        parameters
            .get()?
            .widen()
            .work(driver, state)
            .map(NodeAction::Work)
    })
}

/// Implements `cuGraphExecMemcpyNodeSetParams`: changes a copy node.
pub(crate) fn change_copy(
    exec: Handle<Exec>,
    node: Handle<NodeRef>,
    parameters: In<Copy3d>,
    context: Handle<Context>,
) -> Result {
    change(exec, node, |driver, state| {
        copy_work(driver, state, &parameters.get()?, context).map(NodeAction::Work)
    })
}

/// Implements `cuGraphExecMemsetNodeSetParams`: changes a memset node.
pub(crate) fn change_set(
    exec: Handle<Exec>,
    node: Handle<NodeRef>,
    parameters: In<SetParameters>,
    context: Handle<Context>,
) -> Result {
    change(exec, node, |driver, state| {
        parameters
            .get()?
            .work(driver, state, context)
            .map(NodeAction::Work)
    })
}

/// Implements `cuGraphExecHostNodeSetParams`: changes a host node.
pub(crate) fn change_host(
    exec: Handle<Exec>,
    node: Handle<NodeRef>,
    parameters: In<HostParameters>,
) -> Result {
    change(exec, node, |_, _| {
        parameters.get()?.work().map(NodeAction::Work)
    })
}

/// Implements `cuGraphExecChildGraphNodeSetParams`: changes a child graph of the same form.
pub(crate) fn change_child(
    exec: Handle<Exec>,
    node: Handle<NodeRef>,
    child: Handle<Graph>,
) -> Result {
    change(exec, node, |_, _| Ok(NodeAction::Child(child)))
}

/// Implements `cuGraphExecEventRecordNodeSetEvent`: changes the recorded event.
pub(crate) fn change_record(
    exec: Handle<Exec>,
    node: Handle<NodeRef>,
    event: Handle<Event>,
) -> Result {
    change(exec, node, |_, state| {
        known_event(state, event).map(NodeAction::Record)
    })
}

/// Implements `cuGraphExecEventWaitNodeSetEvent`: changes the awaited event.
pub(crate) fn change_wait(
    exec: Handle<Exec>,
    node: Handle<NodeRef>,
    event: Handle<Event>,
) -> Result {
    change(exec, node, |_, state| {
        known_event(state, event).map(NodeAction::Wait)
    })
}

/// Implements `cuGraphExecNodeSetParams`: changes a node of any kind.
pub(crate) fn change_any(
    exec: Handle<Exec>,
    node: Handle<NodeRef>,
    parameters: In<NodeParameters>,
) -> Result {
    change(exec, node, |driver, state| {
        parameters.get()?.action(driver, state)
    })
}

/// Returns whether a node may be disabled: kernels, copies and memsets.
const fn can_be_disabled(action: &Action) -> bool {
    matches!(action.kind(), kind::KERNEL | kind::COPY | kind::SET)
}

/// Implements `cuGraphNodeSetEnabled`: enables or disables a node.
pub(crate) fn set_enabled(exec: Handle<Exec>, node: Handle<NodeRef>, is_enabled: u32) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    change_plan(driver, &mut state, exec, |plan| {
        let step = plan.find(node).ok_or(Error::INVALID_VALUE)?;
        if !can_be_disabled(&step.action) {
            return Err(Error::INVALID_VALUE);
        }
        step.is_enabled = is_enabled != 0;
        Ok(())
    })
}

/// Implements `cuGraphNodeGetEnabled`: returns whether a node is enabled.
pub(crate) fn get_enabled(exec: Handle<Exec>, node: Handle<NodeRef>, out: Out<u32>) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let there = state.execs.get_mut(exec).ok_or(Error::INVALID_VALUE)?;
    let step = there.plan.find(node).ok_or(Error::INVALID_VALUE)?;
    if !can_be_disabled(&step.action) {
        return Err(Error::INVALID_VALUE);
    }
    out.put(u32::from(step.is_enabled))
}

/// `CUgraphExecUpdateResultInfo`, the result of `cuGraphExecUpdate_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UpdateResult {
    verdict: u32,
    node: Handle<NodeRef>,
    from: Handle<NodeRef>,
}

/// Updates an executable graph from another graph of the same form; returns the reason if it cannot.
fn update_to(exec: Handle<Exec>, graph: Handle<Graph>) -> Result<UpdateResult> {
    let driver = driver()?;
    let mut state = driver.state();
    let new = Plan::of(&state, graph)?;
    let there = state.execs.get(exec).ok_or(Error::INVALID_VALUE)?;
    let objects = state.graphs.get(graph).ok_or(Error::INVALID_VALUE)?;
    let objects: Vec<_> = objects
        .objects
        .iter()
        .map(|held| Arc::clone(&held.object))
        .collect();
    if let Err(found) = compare(&state, &there.plan, &new) {
        return Ok(UpdateResult {
            verdict: found.verdict as u32,
            node: found.node,
            from: Handle::NULL,
        });
    }
    change_plan(driver, &mut state, exec, |plan| {
        adopt(plan, new);
        Ok(())
    })?;
    if let Some(there) = state.execs.get_mut(exec) {
        there.objects = objects;
    }
    Ok(UpdateResult {
        verdict: Verdict::Success as u32,
        node: Handle::NULL,
        from: Handle::NULL,
    })
}

fn update_with(
    exec: Handle<Exec>,
    graph: Handle<Graph>,
    write_result: impl FnOnce(UpdateResult),
) -> Result {
    let result = update_to(exec, graph);
    let exported = result.unwrap_or(UpdateResult {
        verdict: Verdict::Error as u32,
        node: Handle::NULL,
        from: Handle::NULL,
    });
    write_result(exported);
    if result?.verdict == Verdict::Success as u32 {
        Ok(())
    } else {
        Err(Error::GRAPH_EXEC_UPDATE_FAILURE)
    }
}

/// Implements `cuGraphExecUpdate_v2`: updates an executable graph and reports the result in a structure.
pub(crate) fn update(exec: Handle<Exec>, graph: Handle<Graph>, out: Out<UpdateResult>) -> Result {
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    update_with(exec, graph, |result| out.put_if_wanted(result))
}

/// Implements `cuGraphExecUpdate`: updates an executable graph and reports the node and the result.
pub(crate) fn update_v1(
    exec: Handle<Exec>,
    graph: Handle<Graph>,
    node: Out<Handle<NodeRef>>,
    verdict: Out<u32>,
) -> Result {
    update_with(exec, graph, |result| {
        node.put_if_wanted(result.node);
        verdict.put_if_wanted(result.verdict);
    })
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::super::plan::Step;
    use super::*;

    #[test]
    fn structures_have_the_layout_of_the_interface() {
        assert_eq!(size_of::<InstantiateParameters>(), 32);
        assert_eq!(size_of::<UpdateResult>(), 24);
    }

    fn step(action: Action, after: &[usize]) -> Step {
        Step {
            source: Handle::NULL,
            action,
            after: after.to_vec(),
            is_enabled: true,
        }
    }

    #[test]
    fn plans_of_different_forms_are_distinguished() {
        let state = State::new(0);
        let nothing = || Action::Work(Work::Nothing);
        let chain = |last: Action, after: &[usize]| Plan {
            steps: vec![
                step(nothing(), &[]),
                step(nothing(), &[0]),
                step(last, after),
            ],
        };
        let old = chain(nothing(), &[0, 1]);
        let verdict = |new: &Plan| compare(&state, &old, new).map_err(|found| found.verdict);
        assert_eq!(verdict(&chain(nothing(), &[1, 0])), Ok(()));
        assert_eq!(
            verdict(&chain(nothing(), &[1])),
            Err(Verdict::TopologyChanged)
        );
        assert_eq!(verdict(&Plan::default()), Err(Verdict::TopologyChanged));
        let record = chain(Action::Record(Handle::NULL), &[0, 1]);
        assert_eq!(verdict(&record), Err(Verdict::KindChanged));
        let parent = |child: Plan| Plan {
            steps: vec![step(Action::Child(child), &[])],
        };
        let found = compare(&state, &parent(old.clone()), &parent(record)).unwrap_err();
        assert_eq!(found.verdict, Verdict::KindChanged);
        let mut plan = parent(old.clone());
        adopt(
            &mut plan,
            parent(chain(Action::Wait(Handle::NULL), &[0, 1])),
        );
        let Action::Child(child) = &plan.steps[0].action else {
            panic!("{plan:?}");
        };
        assert!(matches!(child.steps[2].action, Action::Wait(_)));
    }
}
