//! Capture and graphs.

use std::ffi::{c_char, c_void};

use crate::context::Context;
use crate::copy::Copy3d;
use crate::event::Event;
use crate::graph::build::{self, Behind, Edge, Pairs};
use crate::graph::capture::{self, Info};
use crate::graph::exchange::InOut;
use crate::graph::exec::{self, Exec, InstantiateParameters, UpdateResult};
use crate::graph::nodes::{Graph, Place};
use crate::graph::objects::{self, Referred};
use crate::graph::parameters::{
    HostParameters, KernelParameters, KernelParametersV1, NodeParameters, SetParameters,
};
use crate::graph::{dot, memory};
use crate::pointer::{In, Out, Text};
use crate::stream::{Default, Stream};
use crate::table::Handle;
use crate::work::HostFunction;

use super::functions;

functions! { TABLE:
    fn cuGraphCreate(out: Out<Handle<Graph>>, flags: u32) = build::create(out, flags);
    fn cuGraphDestroy(handle: Handle<Graph>) = build::destroy(handle);
    fn cuGraphClone(out: Out<Handle<Graph>>, handle: Handle<Graph>) = build::clone(out, handle);
    fn cuGraphNodeFindInClone(out: Out<Handle<Place>>, node: Handle<Place>, clone: Handle<Graph>) = build::find_in_clone(out, node, clone);
    fn cuGraphAddKernelNode(out: Out<Handle<Place>>, handle: Handle<Graph>, list: In<Handle<Place>>, count: usize, parameters: In<KernelParametersV1>) = build::add_kernel_v1(out, handle, Behind::new(list, count), parameters);
    fn cuGraphAddKernelNode_v2(out: Out<Handle<Place>>, handle: Handle<Graph>, list: In<Handle<Place>>, count: usize, parameters: In<KernelParameters>) = build::add_kernel(out, handle, Behind::new(list, count), parameters);
    fn cuGraphAddMemcpyNode(out: Out<Handle<Place>>, handle: Handle<Graph>, list: In<Handle<Place>>, count: usize, parameters: In<Copy3d>, context: Handle<Context>) = build::add_copy(out, handle, Behind::new(list, count), parameters, context);
    fn cuGraphAddMemsetNode(out: Out<Handle<Place>>, handle: Handle<Graph>, list: In<Handle<Place>>, count: usize, parameters: In<SetParameters>, context: Handle<Context>) = build::add_set(out, handle, Behind::new(list, count), parameters, context);
    fn cuGraphAddHostNode(out: Out<Handle<Place>>, handle: Handle<Graph>, list: In<Handle<Place>>, count: usize, parameters: In<HostParameters>) = build::add_host(out, handle, Behind::new(list, count), parameters);
    fn cuGraphAddEmptyNode(out: Out<Handle<Place>>, handle: Handle<Graph>, list: In<Handle<Place>>, count: usize) = build::add_empty(out, handle, Behind::new(list, count));
    fn cuGraphAddChildGraphNode(out: Out<Handle<Place>>, handle: Handle<Graph>, list: In<Handle<Place>>, count: usize, child: Handle<Graph>) = build::add_child(out, handle, Behind::new(list, count), child);
    fn cuGraphAddEventRecordNode(out: Out<Handle<Place>>, handle: Handle<Graph>, list: In<Handle<Place>>, count: usize, event: Handle<Event>) = build::add_record(out, handle, Behind::new(list, count), event);
    fn cuGraphAddEventWaitNode(out: Out<Handle<Place>>, handle: Handle<Graph>, list: In<Handle<Place>>, count: usize, event: Handle<Event>) = build::add_wait(out, handle, Behind::new(list, count), event);
    fn cuGraphAddNode(out: Out<Handle<Place>>, handle: Handle<Graph>, list: In<Handle<Place>>, count: usize, parameters: In<NodeParameters>) = build::add_any(out, handle, Behind::new(list, count), parameters);
    fn cuGraphAddNode_v2(out: Out<Handle<Place>>, handle: Handle<Graph>, list: In<Handle<Place>>, edges: In<Edge>, count: usize, parameters: In<NodeParameters>) = build::add_any(out, handle, Behind { list, edges, count }, parameters);
    fn cuGraphDestroyNode(node: Handle<Place>) = build::destroy_node(node);
    fn cuGraphAddDependencies(handle: Handle<Graph>, from: In<Handle<Place>>, to: In<Handle<Place>>, count: usize) = build::add_dependencies(handle, Pairs::new(from, to, count));
    fn cuGraphAddDependencies_v2(handle: Handle<Graph>, from: In<Handle<Place>>, to: In<Handle<Place>>, edges: In<Edge>, count: usize) = build::add_dependencies(handle, Pairs { from, to, edges, count });
    fn cuGraphRemoveDependencies(handle: Handle<Graph>, from: In<Handle<Place>>, to: In<Handle<Place>>, count: usize) = build::remove_dependencies(handle, Pairs::new(from, to, count));
    fn cuGraphRemoveDependencies_v2(handle: Handle<Graph>, from: In<Handle<Place>>, to: In<Handle<Place>>, edges: In<Edge>, count: usize) = build::remove_dependencies(handle, Pairs { from, to, edges, count });
    fn cuGraphGetNodes(handle: Handle<Graph>, out: Out<Handle<Place>>, count: InOut<usize>) = build::get_nodes(handle, out, count);
    fn cuGraphGetRootNodes(handle: Handle<Graph>, out: Out<Handle<Place>>, count: InOut<usize>) = build::get_roots(handle, out, count);
    fn cuGraphGetEdges(handle: Handle<Graph>, from: Out<Handle<Place>>, to: Out<Handle<Place>>, count: InOut<usize>) = build::get_edges(handle, from, to, None, count);
    fn cuGraphGetEdges_v2(handle: Handle<Graph>, from: Out<Handle<Place>>, to: Out<Handle<Place>>, edges: Out<Edge>, count: InOut<usize>) = build::get_edges(handle, from, to, Some(edges), count);
    fn cuGraphNodeGetDependencies(node: Handle<Place>, out: Out<Handle<Place>>, count: InOut<usize>) = build::get_dependencies(node, out, None, count);
    fn cuGraphNodeGetDependencies_v2(node: Handle<Place>, out: Out<Handle<Place>>, edges: Out<Edge>, count: InOut<usize>) = build::get_dependencies(node, out, Some(edges), count);
    fn cuGraphNodeGetDependentNodes(node: Handle<Place>, out: Out<Handle<Place>>, count: InOut<usize>) = build::get_dependents(node, out, None, count);
    fn cuGraphNodeGetDependentNodes_v2(node: Handle<Place>, out: Out<Handle<Place>>, edges: Out<Edge>, count: InOut<usize>) = build::get_dependents(node, out, Some(edges), count);
    fn cuGraphNodeGetType(node: Handle<Place>, out: Out<u32>) = build::get_kind(node, out);
    fn cuGraphKernelNodeGetParams(node: Handle<Place>, out: Out<KernelParametersV1>) = build::kernel_parameters_v1(node, out);
    fn cuGraphKernelNodeGetParams_v2(node: Handle<Place>, out: Out<KernelParameters>) = build::kernel_parameters(node, out);
    fn cuGraphKernelNodeSetParams(node: Handle<Place>, parameters: In<KernelParametersV1>) = build::change_kernel_v1(node, parameters);
    fn cuGraphKernelNodeSetParams_v2(node: Handle<Place>, parameters: In<KernelParameters>) = build::change_kernel(node, parameters);
    fn cuGraphMemcpyNodeGetParams(node: Handle<Place>, out: Out<Copy3d>) = build::copy_parameters_of(node, out);
    fn cuGraphMemcpyNodeSetParams(node: Handle<Place>, parameters: In<Copy3d>) = build::change_copy(node, parameters);
    fn cuGraphMemsetNodeGetParams(node: Handle<Place>, out: Out<SetParameters>) = build::set_parameters_of(node, out);
    fn cuGraphMemsetNodeSetParams(node: Handle<Place>, parameters: In<SetParameters>) = build::change_set(node, parameters);
    fn cuGraphHostNodeGetParams(node: Handle<Place>, out: Out<HostParameters>) = build::host_parameters_of(node, out);
    fn cuGraphHostNodeSetParams(node: Handle<Place>, parameters: In<HostParameters>) = build::change_host(node, parameters);
    fn cuGraphChildGraphNodeGetGraph(node: Handle<Place>, out: Out<Handle<Graph>>) = build::child_of(node, out);
    fn cuGraphEventRecordNodeGetEvent(node: Handle<Place>, out: Out<Handle<Event>>) = build::recorded_event(node, out);
    fn cuGraphEventRecordNodeSetEvent(node: Handle<Place>, event: Handle<Event>) = build::change_record(node, event);
    fn cuGraphEventWaitNodeGetEvent(node: Handle<Place>, out: Out<Handle<Event>>) = build::awaited_event(node, out);
    fn cuGraphEventWaitNodeSetEvent(node: Handle<Place>, event: Handle<Event>) = build::change_wait(node, event);
    fn cuGraphNodeSetParams(node: Handle<Place>, parameters: In<NodeParameters>) = build::change_any(node, parameters);
    fn cuGraphDebugDotPrint(handle: Handle<Graph>, path: Text, _flags: u32) = dot::print(handle, path);

    fn cuGraphInstantiate(out: Out<Handle<Exec>>, handle: Handle<Graph>, node: Out<Handle<Place>>, log: Out<c_char>, bytes: usize) = exec::instantiate_with_log(out, handle, node, log, bytes);
    fn cuGraphInstantiate_v2(out: Out<Handle<Exec>>, handle: Handle<Graph>, node: Out<Handle<Place>>, log: Out<c_char>, bytes: usize) = exec::instantiate_with_log(out, handle, node, log, bytes);
    fn cuGraphInstantiateWithFlags(out: Out<Handle<Exec>>, handle: Handle<Graph>, flags: u64) = exec::instantiate_with_flags(out, handle, flags);
    fn cuGraphInstantiateWithParams(out: Out<Handle<Exec>>, handle: Handle<Graph>, parameters: InOut<InstantiateParameters>) = exec::instantiate_with_parameters(out, handle, parameters, Default::Legacy);
    fn cuGraphInstantiateWithParams_ptsz(out: Out<Handle<Exec>>, handle: Handle<Graph>, parameters: InOut<InstantiateParameters>) = exec::instantiate_with_parameters(out, handle, parameters, Default::PerThread);
    fn cuGraphUpload(handle: Handle<Exec>, stream: Handle<Stream>) = exec::upload_for(handle, stream, Default::Legacy);
    fn cuGraphUpload_ptsz(handle: Handle<Exec>, stream: Handle<Stream>) = exec::upload_for(handle, stream, Default::PerThread);
    fn cuGraphLaunch(handle: Handle<Exec>, stream: Handle<Stream>) = exec::launch(handle, stream, Default::Legacy);
    fn cuGraphLaunch_ptsz(handle: Handle<Exec>, stream: Handle<Stream>) = exec::launch(handle, stream, Default::PerThread);
    fn cuGraphExecDestroy(handle: Handle<Exec>) = exec::destroy(handle);
    fn cuGraphExecGetFlags(handle: Handle<Exec>, out: Out<u64>) = exec::get_flags(handle, out);
    fn cuGraphExecKernelNodeSetParams(handle: Handle<Exec>, node: Handle<Place>, parameters: In<KernelParametersV1>) = exec::change_kernel_v1(handle, node, parameters);
    fn cuGraphExecKernelNodeSetParams_v2(handle: Handle<Exec>, node: Handle<Place>, parameters: In<KernelParameters>) = exec::change_kernel(handle, node, parameters);
    fn cuGraphExecMemcpyNodeSetParams(handle: Handle<Exec>, node: Handle<Place>, parameters: In<Copy3d>, context: Handle<Context>) = exec::change_copy(handle, node, parameters, context);
    fn cuGraphExecMemsetNodeSetParams(handle: Handle<Exec>, node: Handle<Place>, parameters: In<SetParameters>, context: Handle<Context>) = exec::change_set(handle, node, parameters, context);
    fn cuGraphExecHostNodeSetParams(handle: Handle<Exec>, node: Handle<Place>, parameters: In<HostParameters>) = exec::change_host(handle, node, parameters);
    fn cuGraphExecChildGraphNodeSetParams(handle: Handle<Exec>, node: Handle<Place>, child: Handle<Graph>) = exec::change_child(handle, node, child);
    fn cuGraphExecEventRecordNodeSetEvent(handle: Handle<Exec>, node: Handle<Place>, event: Handle<Event>) = exec::change_record(handle, node, event);
    fn cuGraphExecEventWaitNodeSetEvent(handle: Handle<Exec>, node: Handle<Place>, event: Handle<Event>) = exec::change_wait(handle, node, event);
    fn cuGraphExecNodeSetParams(handle: Handle<Exec>, node: Handle<Place>, parameters: In<NodeParameters>) = exec::change_any(handle, node, parameters);
    fn cuGraphNodeSetEnabled(handle: Handle<Exec>, node: Handle<Place>, is_enabled: u32) = exec::set_enabled(handle, node, is_enabled);
    fn cuGraphNodeGetEnabled(handle: Handle<Exec>, node: Handle<Place>, out: Out<u32>) = exec::get_enabled(handle, node, out);
    fn cuGraphExecUpdate(handle: Handle<Exec>, from: Handle<Graph>, node: Out<Handle<Place>>, verdict: Out<u32>) = exec::update_v1(handle, from, node, verdict);
    fn cuGraphExecUpdate_v2(handle: Handle<Exec>, from: Handle<Graph>, out: Out<UpdateResult>) = exec::update(handle, from, out);

    fn cuStreamBeginCapture(stream: Handle<Stream>) = capture::begin(stream, 0, Default::Legacy);
    fn cuStreamBeginCapture_ptsz(stream: Handle<Stream>) = capture::begin(stream, 0, Default::PerThread);
    fn cuStreamBeginCapture_v2(stream: Handle<Stream>, mode: u32) = capture::begin(stream, mode, Default::Legacy);
    fn cuStreamBeginCapture_v2_ptsz(stream: Handle<Stream>, mode: u32) = capture::begin(stream, mode, Default::PerThread);
    fn cuStreamBeginCaptureToGraph(stream: Handle<Stream>, handle: Handle<Graph>, list: In<Handle<Place>>, edges: In<Edge>, count: usize, mode: u32) = capture::begin_into(stream, handle, Behind { list, edges, count }, mode, Default::Legacy);
    fn cuStreamBeginCaptureToGraph_ptsz(stream: Handle<Stream>, handle: Handle<Graph>, list: In<Handle<Place>>, edges: In<Edge>, count: usize, mode: u32) = capture::begin_into(stream, handle, Behind { list, edges, count }, mode, Default::PerThread);
    fn cuStreamEndCapture(stream: Handle<Stream>, out: Out<Handle<Graph>>) = capture::end(stream, out, Default::Legacy);
    fn cuStreamEndCapture_ptsz(stream: Handle<Stream>, out: Out<Handle<Graph>>) = capture::end(stream, out, Default::PerThread);
    fn cuStreamIsCapturing(stream: Handle<Stream>, out: Out<u32>) = capture::is_capturing(stream, out, Default::Legacy);
    fn cuStreamIsCapturing_ptsz(stream: Handle<Stream>, out: Out<u32>) = capture::is_capturing(stream, out, Default::PerThread);
    fn cuStreamGetCaptureInfo(stream: Handle<Stream>, status: Out<u32>, id: Out<u64>) = capture::info_v1(stream, status, id, Default::Legacy);
    fn cuStreamGetCaptureInfo_ptsz(stream: Handle<Stream>, status: Out<u32>, id: Out<u64>) = capture::info_v1(stream, status, id, Default::PerThread);
    fn cuStreamGetCaptureInfo_v2(stream: Handle<Stream>, status: Out<u32>, id: Out<u64>, handle: Out<Handle<Graph>>, last: Out<*const Handle<Place>>, count: Out<usize>) = capture::info(stream, &Info { status, id, graph: handle, last, edges: None, count }, Default::Legacy);
    fn cuStreamGetCaptureInfo_v2_ptsz(stream: Handle<Stream>, status: Out<u32>, id: Out<u64>, handle: Out<Handle<Graph>>, last: Out<*const Handle<Place>>, count: Out<usize>) = capture::info(stream, &Info { status, id, graph: handle, last, edges: None, count }, Default::PerThread);
    fn cuStreamGetCaptureInfo_v3(stream: Handle<Stream>, status: Out<u32>, id: Out<u64>, handle: Out<Handle<Graph>>, last: Out<*const Handle<Place>>, edges: Out<*const Edge>, count: Out<usize>) = capture::info(stream, &Info { status, id, graph: handle, last, edges: Some(edges), count }, Default::Legacy);
    fn cuStreamGetCaptureInfo_v3_ptsz(stream: Handle<Stream>, status: Out<u32>, id: Out<u64>, handle: Out<Handle<Graph>>, last: Out<*const Handle<Place>>, edges: Out<*const Edge>, count: Out<usize>) = capture::info(stream, &Info { status, id, graph: handle, last, edges: Some(edges), count }, Default::PerThread);
    fn cuStreamUpdateCaptureDependencies(stream: Handle<Stream>, list: In<Handle<Place>>, count: usize, flags: u32) = capture::update(stream, Behind::new(list, count), flags, Default::Legacy);
    fn cuStreamUpdateCaptureDependencies_ptsz(stream: Handle<Stream>, list: In<Handle<Place>>, count: usize, flags: u32) = capture::update(stream, Behind::new(list, count), flags, Default::PerThread);
    fn cuStreamUpdateCaptureDependencies_v2(stream: Handle<Stream>, list: In<Handle<Place>>, edges: In<Edge>, count: usize, flags: u32) = capture::update(stream, Behind { list, edges, count }, flags, Default::Legacy);
    fn cuStreamUpdateCaptureDependencies_v2_ptsz(stream: Handle<Stream>, list: In<Handle<Place>>, edges: In<Edge>, count: usize, flags: u32) = capture::update(stream, Behind { list, edges, count }, flags, Default::PerThread);
    fn cuThreadExchangeStreamCaptureMode(mode: InOut<u32>) = capture::exchange_mode(mode);

    fn cuUserObjectCreate(out: Out<Handle<Referred>>, data: *mut c_void, destroy: Option<HostFunction>, count: u32, flags: u32) = objects::create(out, data, destroy, count, flags);
    fn cuUserObjectRetain(object: Handle<Referred>, count: u32) = objects::retain(object, count);
    fn cuUserObjectRelease(object: Handle<Referred>, count: u32) = objects::release(object, count);
    fn cuGraphRetainUserObject(handle: Handle<Graph>, object: Handle<Referred>, count: u32, flags: u32) = objects::graph_retain(handle, object, count, flags);
    fn cuGraphReleaseUserObject(handle: Handle<Graph>, object: Handle<Referred>, count: u32) = objects::graph_release(handle, object, count);
    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, out: Out<u64>) = memory::attribute(device, attribute, out);
    fn cuDeviceSetGraphMemAttribute(device: i32, attribute: u32, value: In<u64>) = memory::set_attribute(device, attribute, value);
    fn cuDeviceGraphMemTrim(device: i32) = memory::trim(device);
}
