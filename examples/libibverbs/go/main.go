// mirror - data over RDMA from Go, by librdmacm and libibverbs (cgo).
//
//	heddle run -- mirror server PORT
//	heddle run -- mirror client ADDRESS PORT
//
// The client sends the place of its memory: address (8 bytes), rkey and length (4 each),
// big-endian. The server reads that memory, reverses the order of the bytes, writes them back, and
// sends an empty message. The client compares. The two do this several times, and the server ends
// with its client. The program in ../rust uses the same protocol.
package main

/*
#cgo LDFLAGS: -lrdmacm -libverbs
#include <stdlib.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

// ibv_reg_mr is a macro, which Go cannot call.
static struct ibv_mr *reg_remote(struct rdma_cm_id *id, void *addr, size_t len) {
	return ibv_reg_mr(id->pd, addr, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
}
*/
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

const (
	size   = 300_000 // bytes that the server reverses
	rounds = 10
)

// Registered memory. The memory is not in Go's heap: the device keeps its address after the call,
// which Go permits only for memory outside its heap.
type buffer struct {
	bytes []byte
	region *C.struct_ibv_mr
}

func (b *buffer) at() unsafe.Pointer { return unsafe.Pointer(&b.bytes[0]) }

func newBuffer(id *C.struct_rdma_cm_id, length int) (*buffer, error) {
	bytes, err := syscall.Mmap(-1, 0, length, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	b := &buffer{bytes: bytes}
	if b.region, err = C.reg_remote(id, b.at(), C.size_t(length)); b.region == nil {
		return nil, fmt.Errorf("ibv_reg_mr: %w", err)
	}
	return b, nil
}

// An end of a connection.
type end struct {
	id            *C.struct_rdma_cm_id
	data, message *buffer
}

func newEnd(id *C.struct_rdma_cm_id) (*end, error) {
	data, err := newBuffer(id, size)
	if err != nil {
		return nil, err
	}
	message, err := newBuffer(id, 16)
	return &end{id, data, message}, err
}

// Ends the connection, and gives back the allocated resources.
func (e *end) close() {
	C.rdma_disconnect(e.id)
	for _, b := range []*buffer{e.data, e.message} {
		C.ibv_dereg_mr(b.region)
		syscall.Munmap(b.bytes)
	}
	C.rdma_destroy_ep(e.id)
}

// Converts the result of a librdmacm call, which fails with -1 and errno, to an error.
func check(what string, result C.int, err error) error {
	if result < 0 {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func completed(what string, wc *C.struct_ibv_wc) error {
	if wc.status != C.IBV_WC_SUCCESS {
		return fmt.Errorf("%s: %s", what, C.GoString(C.ibv_wc_status_str(wc.status)))
	}
	return nil
}

func (e *end) receive() error {
	result, err := C.rdma_post_recv(e.id, nil, e.message.at(), 16, e.message.region)
	return check("rdma_post_recv", result, err)
}

func (e *end) received() error {
	var wc C.struct_ibv_wc
	result, err := C.rdma_get_recv_comp(e.id, &wc)
	if err := check("rdma_get_recv_comp", result, err); err != nil {
		return err
	}
	return completed("receive", &wc)
}

func (e *end) sent(what string) error {
	var wc C.struct_ibv_wc
	result, err := C.rdma_get_send_comp(e.id, &wc)
	if err := check("rdma_get_send_comp", result, err); err != nil {
		return err
	}
	return completed(what, &wc)
}

func (e *end) send(length int) error {
	result, err := C.rdma_post_send(e.id, nil, e.message.at(), C.size_t(length), e.message.region, 0)
	if err := check("rdma_post_send", result, err); err != nil {
		return err
	}
	return e.sent("Send")
}

func (e *end) read(address uint64, rkey uint32, length int) error {
	result, err := C.rdma_post_read(e.id, nil, e.data.at(), C.size_t(length), e.data.region, 0,
		C.uint64_t(address), C.uint32_t(rkey))
	if err := check("rdma_post_read", result, err); err != nil {
		return err
	}
	return e.sent("Read")
}

func (e *end) write(address uint64, rkey uint32, length int) error {
	result, err := C.rdma_post_write(e.id, nil, e.data.at(), C.size_t(length), e.data.region, 0,
		C.uint64_t(address), C.uint32_t(rkey))
	if err := check("rdma_post_write", result, err); err != nil {
		return err
	}
	return e.sent("Write")
}

// Makes an endpoint that listens at the port, or will connect to the address.
func endpoint(address, port string) (*C.struct_rdma_cm_id, error) {
	hints := C.struct_rdma_addrinfo{ai_port_space: C.RDMA_PS_TCP}
	var node *C.char
	if address == "" {
		hints.ai_flags = C.RAI_PASSIVE
	} else {
		node = C.CString(address)
		defer C.free(unsafe.Pointer(node))
	}
	service := C.CString(port)
	defer C.free(unsafe.Pointer(service))
	var found *C.struct_rdma_addrinfo
	if result, err := C.rdma_getaddrinfo(node, service, &hints, &found); result != 0 {
		return nil, fmt.Errorf("rdma_getaddrinfo: %w", err)
	}
	defer C.rdma_freeaddrinfo(found)
	attr := C.struct_ibv_qp_init_attr{
		cap:        C.struct_ibv_qp_cap{max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1},
		qp_type:    C.IBV_QPT_RC,
		sq_sig_all: 1,
	}
	var id *C.struct_rdma_cm_id
	result, err := C.rdma_create_ep(&id, found, nil, &attr)
	return id, check("rdma_create_ep", result, err)
}

func serve(port string) error {
	listener, err := endpoint("", port)
	if err != nil {
		return err
	}
	defer C.rdma_destroy_ep(listener)
	result, err := C.rdma_listen(listener, 1)
	if err := check("rdma_listen", result, err); err != nil {
		return err
	}
	var id *C.struct_rdma_cm_id
	result, err = C.rdma_get_request(listener, &id)
	if err := check("rdma_get_request", result, err); err != nil {
		return err
	}
	e, err := newEnd(id)
	if err != nil {
		return err
	}
	defer e.close()
	if err := e.receive(); err != nil {
		return err
	}
	result, err = C.rdma_accept(id, nil)
	if err := check("rdma_accept", result, err); err != nil {
		return err
	}
	for round := 0; round < rounds; round++ {
		if err := e.mirror(round+1 < rounds); err != nil {
			return err
		}
	}
	// The client ends the connection, and with it the receive that waits.
	if err := e.receive(); err != nil {
		return err
	}
	if e.received() == nil {
		return errors.New("the client sent more than was agreed")
	}
	return nil
}

// Serves a request of the client, and posts a receive for the next.
func (e *end) mirror(more bool) error {
	if err := e.received(); err != nil {
		return err
	}
	address := binary.BigEndian.Uint64(e.message.bytes)
	rkey := binary.BigEndian.Uint32(e.message.bytes[8:])
	length := int(binary.BigEndian.Uint32(e.message.bytes[12:]))
	if length > size {
		length = size
	}
	if err := e.read(address, rkey, length); err != nil {
		return err
	}
	for i, j := 0, length-1; i < j; i, j = i+1, j-1 {
		e.data.bytes[i], e.data.bytes[j] = e.data.bytes[j], e.data.bytes[i]
	}
	if err := e.write(address, rkey, length); err != nil {
		return err
	}
	if more {
		if err := e.receive(); err != nil {
			return err
		}
	}
	// The client may read the written bytes: the Send arrives after the Write before it.
	return e.send(0)
}

func ask(address, port string) error {
	id, err := endpoint(address, port)
	if err != nil {
		return err
	}
	e, err := newEnd(id)
	if err != nil {
		return err
	}
	defer e.close()
	result, err := C.rdma_connect(id, nil)
	if err := check("rdma_connect", result, err); err != nil {
		return err
	}
	pattern := func(i, round int) byte { return byte(i*31>>3) ^ byte(round) }
	for round := 0; round < rounds; round++ {
		for i := range e.data.bytes {
			e.data.bytes[i] = pattern(i, round)
		}
		if err := e.receive(); err != nil {
			return err
		}
		binary.BigEndian.PutUint64(e.message.bytes, uint64(uintptr(e.data.at())))
		binary.BigEndian.PutUint32(e.message.bytes[8:], uint32(e.data.region.rkey))
		binary.BigEndian.PutUint32(e.message.bytes[12:], size)
		if err := e.send(16); err != nil {
			return err
		}
		if err := e.received(); err != nil {
			return err
		}
		for i := range e.data.bytes {
			if e.data.bytes[size-1-i] != pattern(i, round) {
				return fmt.Errorf("round %d: byte %d is not what was sent", round, i)
			}
		}
	}
	fmt.Printf("%d rounds of %d bytes came back mirrored\n", rounds, size)
	return nil
}

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "server":
		err = serve(args[1])
	case len(args) == 3 && args[0] == "client":
		err = ask(args[1], args[2])
	default:
		err = errors.New("usage: mirror server PORT | mirror client ADDRESS PORT")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mirror:", err)
		os.Exit(1)
	}
}
