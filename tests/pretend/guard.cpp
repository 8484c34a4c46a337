// torch asks a device's guard before it runs an operation there; a CPU build has none for CUDA.  This one does nothing.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> nothing;
c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, &nothing);
}
