// Calls a method as a program with grpc-go does, many times at once on one connection. The request's
// bytes come from standard input; what came of each call goes to standard output, one JSON object a line.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

var (
	target     = flag.String("target", "", "host:port")
	method     = flag.String("method", "", "/package.Service/Method")
	calls      = flag.Int("calls", 1, "at once")
	timeout    = flag.Duration("timeout", 20*time.Second, "deadline of each call")
	leaveAfter = flag.Int("leave-after", 0, "messages after which a call is cancelled; 0: none")
	compress   = flag.Bool("gzip", false, "compress requests")
	token      = flag.String("token", "", "bearer token")
	authority  = flag.String("ca", "", "PEM file; without it nothing is encrypted")
	cert       = flag.String("cert", "", "PEM file")
	key        = flag.String("key", "", "PEM file")
)

type result struct {
	Code     string      `json:"code"`
	Details  string      `json:"details"`
	Messages [][]byte    `json:"messages"`
	Header   metadata.MD `json:"header"`
	Trailer  metadata.MD `json:"trailer"`
}

// Messages as they are: what they mean is not this program's.
type raw struct{}

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = bytes.Clone(data)
	return nil
}

func (raw) Name() string { return "proto" }

func main() {
	flag.Parse()
	request, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	connection, err := grpc.NewClient(*target, grpc.WithTransportCredentials(transport()))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	results := make(chan result)
	for range *calls {
		go func() { results <- call(connection, request) }()
	}
	lines := json.NewEncoder(os.Stdout)
	for range *calls {
		if err := lines.Encode(<-results); err != nil {
			log.Fatal(err)
		}
	}
}

func transport() credentials.TransportCredentials {
	if *authority == "" {
		return insecure.NewCredentials()
	}
	pem, err := os.ReadFile(*authority)
	if err != nil {
		log.Fatal(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(pem)
	if *cert != "" {
		own, err := tls.LoadX509KeyPair(*cert, *key)
		if err != nil {
			log.Fatal(err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return credentials.NewTLS(config)
}

func call(connection *grpc.ClientConn, request []byte) result {
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	if *token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+*token)
	}
	options := []grpc.CallOption{grpc.ForceCodec(raw{})}
	if *compress {
		options = append(options, grpc.UseCompressor(gzip.Name))
	}
	var come result
	ended := come.receive(ctx, cancel, connection, request, options)
	come.Code, come.Details = status.Code(ended).String(), status.Convert(ended).Message()
	return come
}

// Reads the answer to its end and returns how it ended, nil if well.
func (come *result) receive(
	ctx context.Context, cancel func(), connection *grpc.ClientConn, request []byte, options []grpc.CallOption,
) error {
	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, *method, options...)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	come.Header, _ = stream.Header()
	for {
		var message []byte
		if err := stream.RecvMsg(&message); err != nil {
			come.Trailer = stream.Trailer()
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		come.Messages = append(come.Messages, message)
		if len(come.Messages) == *leaveAfter {
			cancel()
		}
	}
}
