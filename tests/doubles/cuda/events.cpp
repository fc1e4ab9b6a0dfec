#include <algorithm>

#include "devices.h"
#include "entry.h"
#include "handles.h"
#include "streams.h"

using namespace cuda_double;

CU_API cuEventCreate(CUevent* out, unsigned flags) {
  CU_ENTER(kDriver | kContext);
  if (!out || flags > 7) return kInvalidValue;
  auto event = std::make_shared<CUevent_st>();
  event->device = current_device();
  event->timed = !(flags & kEventDisableTiming);
  *out = handles<CUevent_st>().add(event);
  return kSuccess;
}

CU_API cuEventDestroy_v2(CUevent handle) {
  CU_ENTER(kDriver | kContext);
  return handles<CUevent_st>().remove(handle) ? kSuccess : kInvalidHandle;
}

static CUresult record(CUevent handle, CUstream stream_handle, bool external) {
  const auto event = handles<CUevent_st>().find(handle);
  const auto stream = stream_of(stream_handle);
  if (!event || !stream || event->device != stream->device) return kInvalidHandle;
  std::lock_guard<std::mutex> lock(engine());
  if (CUresult error = check_capture(*stream)) return error;
  if (external) {  // a node of the graph; the event's current meaning is unchanged
    if (!stream->capture) return kInvalidValue;
    Node node;
    node.records = event;
    add_node(*stream, std::move(node));
    return kSuccess;
  }
  event->capture = stream->capture;
  event->heads = stream->heads;
  event->recorded = stream->capture ? nullptr : enqueue(*stream, nullptr);
  return kSuccess;
}

CU_API cuEventRecord(CUevent event, CUstream stream) {
  CU_ENTER(kDriver | kContext);
  return record(event, stream, false);
}

CU_API cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  CU_ENTER(kDriver | kContext);
  return flags > kEventExternal ? kInvalidValue : record(event, stream, flags == kEventExternal);
}

CU_API cuEventQuery(CUevent handle) {
  CU_ENTER(kDriver | kContext | kNoCapture);
  const auto event = handles<CUevent_st>().find(handle);
  if (!event) return kInvalidHandle;
  std::lock_guard<std::mutex> lock(engine());
  if (event->capture) return kCapturedEvent;
  return event->recorded && !event->recorded->done ? kNotReady : kSuccess;
}

CU_API cuEventSynchronize(CUevent handle) {
  CU_ENTER(kDriver | kContext | kNoCapture);
  const auto event = handles<CUevent_st>().find(handle);
  if (!event) return kInvalidHandle;
  std::unique_lock<std::mutex> lock(engine());
  if (event->capture) return kCapturedEvent;
  const OpPtr op = event->recorded;
  wait_for(lock, op);
  return kSuccess;
}

CU_API cuEventElapsedTime(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  CU_ENTER(kDriver | kContext);
  const auto start = handles<CUevent_st>().find(start_handle), end = handles<CUevent_st>().find(end_handle);
  if (!milliseconds) return kInvalidValue;
  std::lock_guard<std::mutex> lock(engine());
  if (!start || !end || !start->timed || !end->timed || !start->recorded || !end->recorded) return kInvalidHandle;
  if (!start->recorded->done || !end->recorded->done) return kNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(end->recorded->done_at - start->recorded->done_at).count();
  return kSuccess;
}

CU_API cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags) {
  CU_ENTER(kDriver | kContext);
  const auto event = handles<CUevent_st>().find(handle);
  const auto stream = stream_of(stream_handle);
  if (!event || !stream) return kInvalidHandle;
  if (flags > kEventExternal) return kInvalidValue;
  std::lock_guard<std::mutex> lock(engine());
  if (CUresult error = check_capture(*stream)) return error;
  if (flags == kEventExternal) {  // a node of the graph, and no order among its nodes
    if (!stream->capture) return kInvalidValue;
    Node node;
    node.waits = event;
    add_node(*stream, std::move(node));
    return kSuccess;
  }
  if (event->capture) {
    if (event->capture->invalid) return kCaptureInvalidated;
    if (stream->capture && stream->capture != event->capture) {
      invalidate(*stream->capture);
      invalidate(*event->capture);
      return kCaptureMerge;
    }
    if (event->capture->ended) return kCapturedEvent;
    if (stream->legacy) return kCaptureImplicit;
    if (!stream->capture) {  // the capture spreads to this stream
      stream->capture = event->capture;
      stream->capture->streams.push_back(stream);
      stream->heads.clear();
    }
    for (int head : event->heads) {
      if (std::find(stream->heads.begin(), stream->heads.end(), head) == stream->heads.end()) {
        stream->heads.push_back(head);
      }
    }
    return kSuccess;
  }
  if (stream->capture) {
    if (!event->recorded) return kSuccess;
    invalidate(*stream->capture);
    return kCaptureIsolation;
  }
  if (event->recorded && !event->recorded->done) enqueue(*stream, nullptr, {event->recorded});
  return kSuccess;
}
